# shellcheck shell=bash
# What the scripts that start real servers share. A server process is known by its pid file; the
# path of that file is on the process's command line, so that a pid used again by another program
# is never taken for ours.

CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/threadmq/servers
JAVA=${JAVA_HOME:+$JAVA_HOME/bin/}java

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# classpath POM: the jars that POM asks for, fetched by Maven once and remembered until POM changes.
classpath() {
  local pom=$1 list jar jars complete
  mkdir -p "$CACHE"
  list=$CACHE/$(cksum < "$pom" | tr ' ' -).classpath
  (
    flock 9
    complete=no
    if [ -s "$list" ]; then
      complete=yes
      IFS=: read -ra jars < "$list" || true
      for jar in "${jars[@]}"; do [ -e "$jar" ] || complete=no; done
    fi
    if [ "$complete" = no ]; then
      command -v mvn > /dev/null || die "mvn is missing; run: make setup"
      echo "fetching the server's jars (once)" >&2
      mvn -q -B -f "$pom" dependency:build-classpath -Dmdep.outputFile="$list.new" >&2 < /dev/null \
        || die "Maven could not fetch the server's jars"
      mv "$list.new" "$list"
    fi
  ) 9> "$list.lock" || return 1
  cat "$list"
}

# launch PIDFILE LOG JAVA-ARGUMENTS...: start a JVM that outlives this shell.
launch() {
  local pidfile=$1 log=$2
  shift 2
  setsid nohup "$JAVA" "-Dthreadmq.pidfile=$pidfile" "$@" >> "$log" 2>&1 < /dev/null &
  echo $! > "$pidfile"
}

# alive PIDFILE: whether the process of this pid file runs (frozen counts as running).
alive() {
  local pid
  [ -s "$1" ] || return 1
  pid=$(cat "$1")
  if [ -d /proc/self ]; then
    grep -qzxF -- "-Dthreadmq.pidfile=$1" "/proc/$pid/cmdline" 2> /dev/null
  else
    ps -ww -o args= -p "$pid" | grep -qF -- "-Dthreadmq.pidfile=$1"
  fi
}

# signal NAME PIDFILE: nothing happens when the process is not there.
signal() {
  if alive "$2"; then kill -s "$1" "$(cat "$2")" 2> /dev/null || true; fi
}

# end PIDFILE SECONDS: wait for the process to end, by SIGKILL when the seconds are over.
end() {
  local pidfile=$1 deadline=$((SECONDS + $2))
  while alive "$pidfile"; do
    if [ "$SECONDS" -ge "$deadline" ]; then signal KILL "$pidfile"; fi
    sleep 0.1
  done
  rm -f "$pidfile"
}

# await SECONDS PIDFILE COMMAND...: until COMMAND succeeds. For the shell that launched the process.
await() {
  local deadline=$((SECONDS + $1)) pid
  pid=$(cat "$2")
  shift 2
  until "$@" > /dev/null 2>&1; do
    kill -0 "$pid" 2> /dev/null || return 1
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.2
  done
}

# listening PORT: whether something accepts connections there.
listening() { (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }

# free_port: one that nobody listens on, below the range that the system gives to outgoing connections.
free_port() {
  local port
  while :; do
    port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
    if ! listening "$port"; then
      echo "$port"
      return
    fi
  done
}
