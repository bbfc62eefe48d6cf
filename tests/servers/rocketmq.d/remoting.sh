# shellcheck shell=bash
# Topics and groups, made by calls in the broker's own protocol: the admin tool is a JVM, with seconds a call.
# A frame of that protocol: its length, the length of its header, the header in JSON, the body. Lengths
# have four bytes.

# json TEXT: as a string of JSON.
json() {
  local text=${1//\\/\\\\}
  printf '"%s"' "${text//\"/\\\"}"
}

# fields NAME VALUE...: the inside of an object of JSON.
fields() {
  local comma=''
  while [ $# -ge 2 ]; do
    printf '%s%s:%s' "$comma" "$(json "$1")" "$(json "$2")"
    comma=,
    shift 2
  done
}

# four_bytes NUMBER: as escapes of printf.
four_bytes() {
  printf '\\x%02x\\x%02x\\x%02x\\x%02x' $(($1 >> 24 & 255)) $(($1 >> 16 & 255)) $(($1 >> 8 & 255)) $(($1 & 255))
}

# call PORT CODE FIELDS [BODY]: one request. Fails with the server's words when it did not succeed.
call() (
  LC_ALL=C
  header="{\"code\":$2,\"flag\":0,\"language\":\"JAVA\",\"opaque\":1,\"version\":0,\"extFields\":{$3}}" body=${4:-}
  exec 3<> "/dev/tcp/127.0.0.1/$1" || exit 1
  # shellcheck disable=SC2059 # The escapes are meant.
  printf "$(four_bytes $((4 + ${#header} + ${#body})))$(four_bytes ${#header})" >&3
  printf '%s%s' "$header" "$body" >&3
  # The header is the first object in the answer. Before it are the lengths, any bytes; read leaves out NUL.
  answer=''
  until [[ $answer == *'{"'* ]]; do
    IFS= read -r -t 10 -d '}' part <&3 || { echo "no answer from port $1" >&2 && exit 1; }
    answer+=$part
  done
  case $answer in
    *'"code":0' | *'"code":0,'*) ;;
    *)
      answer=${answer#*'"remark":"'}
      echo "${answer%%'","'*}" >&2
      exit 1
      ;;
  esac
)

# known TOPIC: whether the name server knows where it is.
known() { call "$namesrv" 105 "$(fields topic "$1")" 2> /dev/null; }

# The broker tells the name server of its topics at its start, but a quick one misses the moment and
# comes back to it after 10 s only. A change of its permission makes it tell at once.
registered() {
  local permission
  if known DefaultCluster; then return; fi
  permission=$(sed -n 's/^brokerPermission=//p' "$dir/conf/broker.conf" | tail -n 1)
  call "$broker" 25 '' "brokerPermission=${permission:-6}"
  return 1
}

# create_topics TYPE QUEUES NAME...
create_topics() {
  local type=$1 queues=$2 name
  shift 2
  for name in "$@"; do
    call "$broker" 17 "$(fields topic "$name" defaultTopic TBW102 readQueueNums "$queues" writeQueueNums "$queues" \
      perm 6 topicFilterType SINGLE_TAG topicSysFlag 0 order false attributes "+message.type=$type")" \
      || die "topic $name was not created"
    known "$name" || die "the name server does not know topic $name"
  done
}

# delete_topics NAME...
delete_topics() {
  local name port
  for name in "$@"; do
    for port in "$broker:215" "$namesrv:216"; do
      call "${port%:*}" "${port#*:}" "$(fields topic "$name")" || die "topic $name was not deleted"
    done
  done
}

# create_groups ORDERLY RETRIES BACKOFF NAME...
create_groups() {
  local name orderly=$1 retries=$2 policy=''
  if [ -n "$3" ]; then
    policy=",\"groupRetryPolicy\":{\"type\":\"CUSTOMIZED\",\"customizedRetryPolicy\":{\"next\":[$3]}}"
  fi
  shift 3
  for name in "$@"; do
    call "$broker" 200 '' \
      "{\"groupName\":$(json "$name"),\"consumeMessageOrderly\":$orderly,\"retryMaxTimes\":$retries$policy}" \
      || die "group $name was not created"
  done
}
