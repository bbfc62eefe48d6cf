# shellcheck shell=bash
# Ports, configuration and start of the processes. Options and ports are variables of the start script.

pidfile() { echo "$dir/$1.pid"; }

# roles [NAME]...: the processes that the names mean, in the order in which they start.
roles() {
  local name i
  if [ $# = 0 ]; then set -- namesrv broker proxy; fi
  for name in "$@"; do
    case $name in
      namesrv | broker) echo "$name" ;;
      proxy) for ((i = 1; i <= proxies; i++)); do echo "proxy$i"; done ;;
      *)
        for ((i = 1; i <= proxies; i++)); do if [ "$name" = "proxy$i" ]; then echo "$name" && continue 2; fi; done
        die "there is no $name among namesrv, broker and $proxies proxy"
        ;;
    esac
  done
}

# port_of ROLE: that which others use.
port_of() {
  case $1 in
    namesrv) echo "$namesrv" ;;
    broker) echo "$broker" ;;
    proxy*) echo "${ports[${1#proxy} - 1]}" ;;
  esac
}

# free_block SIZE: the first of as many free ports.
free_block() {
  local first p
  while :; do
    first=$(free_port)
    for ((p = first + 1; p < first + $1; p++)); do
      if listening "$p"; then continue 2; fi
    done
    echo "$first"
    return
  done
}

# Ports that are not given and not remembered. The broker listens at two more: 2 below its own and 1 above.
choose_ports() {
  local block i
  block=$(free_block $((5 + 2 * proxies)))
  namesrv=${namesrv:-$block}
  broker=${broker:-$((block + 3))}
  if [ -n "$port" ]; then ports[0]=$port; fi
  for ((i = 0; i < proxies; i++)); do
    old_ports[i]=${old_ports[i]:-$((block + 5 + i))}
    if [ "$free" = yes ]; then
      ports[i]=${ports[i]:-$((block + 5 + proxies + i))}
    else
      ports[i]=${ports[i]:-$((${ports[0]:-8081} + i))}
    fi
  done
  ports=("${ports[@]:0:proxies}") old_ports=("${old_ports[@]:0:proxies}")
}

# as_json: an object of lines KEY=VALUE. The server takes numbers and truth as strings too.
as_json() {
  local line pairs=()
  while IFS= read -r line; do
    case $line in '' | \#*) ;; *) pairs+=("${line%%=*}" "${line#*=}") ;; esac
  done
  printf '{%s}\n' "$(fields "${pairs[@]}")"
}

write_configuration() {
  local i account certificate=$certificate key=$key
  mkdir -p "$dir/conf"
  if [ -z "$certificate" ]; then make_certificate; fi
  printf '%s\n' bindAddress=127.0.0.1 "listenPort=$namesrv" > "$dir/conf/namesrv.conf"
  {
    cat "$conf/broker.conf"
    printf '%s\n' "listenPort=$broker" "namesrvAddr=127.0.0.1:$namesrv" "storePathRootDir=$dir/store"
    if [ -n "$user" ]; then
      echo authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
      account="{$(fields username "${user%%:*}" password "${user#*:}")}"
      # A backslash is an escape in this file too.
      echo "initAuthenticationUser=${account//\\/\\\\}"
    fi
    printf '%s\n' "${broker_sets[@]+"${broker_sets[@]}"}"
  } > "$dir/conf/broker.conf"
  for ((i = 0; i < proxies; i++)); do
    {
      cat "$conf/proxy.conf"
      printf '%s\n' "proxyName=proxy$((i + 1))" "namesrvAddr=127.0.0.1:$namesrv"
      printf '%s\n' "grpcServerPort=${ports[i]}" "remotingListenPort=${old_ports[i]}"
      printf '%s\n' tlsTestModeEnable=false "tlsCertPath=$certificate" "tlsKeyPath=$key"
      if [ -n "$user" ]; then
        printf '%s\n' authenticationEnabled=true \
          authenticationMetadataProvider=org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider
      fi
      printf '%s\n' "${sets[@]+"${sets[@]}"}"
    } | as_json > "$dir/conf/proxy$((i + 1)).json"
  done
}

# The server's own self-signed certificate costs it seconds at each start. This one can also be trusted by a test.
make_certificate() {
  certificate=$dir/conf/server.crt key=$dir/conf/server.key
  [ -s "$certificate" ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
    -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
    -keyout "$key" -out "$certificate" 2> "$dir/conf/openssl.log" || die "openssl failed; see $dir/conf/openssl.log"
}

# run ROLE HEAP_MB MAIN-CLASS ARGUMENTS...
run() {
  local role=$1 heap=$2 options mode=disabled
  shift 2
  case $role in proxy*) mode=$tls ;; esac
  # With the quick compiler alone a start is a third less work.
  options=(
    "-Xmx${heap}m" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:MaxDirectMemorySize=256m -XX:+ExitOnOutOfMemoryError
    "-Drocketmq.home.dir=$dir" "-Duser.home=$dir" "-Djava.io.tmpdir=$dir/tmp"
    "-Drmq.logback.configurationFile=$conf/logback.xml" "-Dtls.server.mode=$mode" -Dtls.enable=false
    "${java[@]+"${java[@]}"}"
  )
  if [ -e "$dir/$role.log" ]; then mv "$dir/$role.log" "$dir/$role.log.old"; fi
  launch "$(pidfile "$role")" "$dir/$role.log" "${options[@]}" -cp "$classpath" "$@"
}

run_role() {
  case $1 in
    namesrv) run "$1" 64 org.apache.rocketmq.namesrv.NamesrvStartup -c "$dir/conf/namesrv.conf" ;;
    broker) run "$1" 256 org.apache.rocketmq.broker.BrokerStartup -c "$dir/conf/broker.conf" ;;
    proxy*) run "$1" 256 org.apache.rocketmq.proxy.ProxyStartup -pm cluster -pc "$dir/conf/$1.json" ;;
  esac
}

# serving ROLE: whether it can be used. The port of the old protocol is the last thing that a proxy opens.
serving() {
  alive "$(pidfile "$1")" && listening "$(port_of "$1")" || return 1
  case $1 in proxy*) listening "${old_ports[${1#proxy} - 1]}" ;; esac
}

# port_taken ROLE...: whether another program was first. The broker stays, without its port.
port_taken() {
  local role
  for role in "$@"; do if grep -qs 'Address already in use' "$dir/$role.log"; then return; fi; done
  return 1
}

settled() { serving "$1" || port_taken "$1"; }

# run_together ROLE...: all at a time, until each can be used.
run_together() {
  local role
  for role in "$@"; do run_role "$role"; done
  for role in "$@"; do
    await 120 "$(pidfile "$role")" settled "$role" && serving "$role" || return 1
  done
}

# run_all ROLE...: name server and broker, then the proxies, which fail without the broker.
run_all() {
  local role first=() then=()
  for role in "$@"; do
    case $role in proxy*) then+=("$role") ;; *) first+=("$role") ;; esac
  done
  if [ "${#first[@]}" -gt 0 ]; then
    run_together "${first[@]}" || return 1
    if alive "$(pidfile namesrv)" && alive "$(pidfile broker)"; then
      await 60 "$(pidfile "${first[0]}")" registered || return 1
    fi
  fi
  if [ "${#then[@]}" -gt 0 ]; then run_together "${then[@]}"; fi
}
