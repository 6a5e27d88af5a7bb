# Shared by the scripts of this folder; sourced, not run. Needs bash and Python 3.11, 3.12 or 3.13.
#
# Everything made here lies inside the clone, ignored by git: .venv (the environment), .state (uv, Airflow's home,
# the demo's data). Only what apt installs and the download caches of uv and Maven lie elsewhere.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
STATE=$ROOT/.state
EXTRAS=hdfs,gpu,postgres,dev,docs
cd "$ROOT"

say() { printf '\n== %s\n' "$*"; }

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# A settled surrounding: no setting of another Airflow may reach ours (its database would be migrated!).
settle_environment() {
    local name
    for name in $(compgen -e); do
        case $name in
            AIRFLOW__* | AIRFLOW_CONN_* | AIRFLOW_VAR_* | AIRFLOW_CONFIG | PYTHONPATH | PYTHONHOME | VIRTUAL_ENV) unset "$name" ;;
        esac
    done
    mkdir -p "$STATE"
    if [ -z "${HOME:-}" ] || [ ! -w "$HOME" ]; then
        export HOME=$STATE/home
        mkdir -p "$HOME"
    fi
    export AIRFLOW_HOME=$STATE/airflow
    export AIRFLOW__CORE__DAGS_FOLDER=$ROOT/dags
    export AIRFLOW__CORE__PLUGINS_FOLDER=$ROOT/plugins
    export AIRFLOW__CORE__LOAD_EXAMPLES=False
    export AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION=False # also when dags test meets it first
    export AIRFLOW__AIRFLOW_TF__LOCK_DIR=$STATE/locks # CPU slots of this clone only
    export PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=2
    mkdir -p "$AIRFLOW_HOME" "$STATE/locks"
}

find_python() {
    local candidate
    for candidate in python3.13 python3.12 python3.11 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11, 3.12 or 3.13 on PATH; install one"
}

# apt_install WHAT PACKAGE...: installs packages as root, or says what to install.
apt_install() {
    local what=$1
    shift
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "$what is missing and this is not root on a Debian-like system; install it first (apt-get install $*)"
    fi
    say "Installing $what by apt: $*"
    apt-get update -qq || fail "apt-get update failed; cannot install $what"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
        fail "apt-get install $* failed"
}

# Prints the path of uv; installs it into the clone where the machine has none.
find_uv() {
    local python=$1
    if uv --version >/dev/null 2>&1; then
        command -v uv
        return
    fi
    if [ ! -x "$STATE/uv/bin/uv" ]; then
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            apt_install "Python's venv module" "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2
        "$python" -m venv "$STATE/uv"
        "$STATE/uv/bin/python" -m pip install --quiet --disable-pip-version-check uv >&2
    fi
    echo "$STATE/uv/bin/uv"
}

# Installs .venv by the constraints; a second run with the same files does nothing.
ensure_environment() {
    local python stamp uv
    stamp="$EXTRAS $(cksum pyproject.toml constraints.txt)"
    if [ ! -x .venv/bin/airflow ] || [ "$(cat .venv/airflow_tf.stamp 2>/dev/null)" != "$stamp" ]; then
        python=$(find_python)
        uv=$(find_uv "$python")
        say "Installing into .venv with $("$python" --version) and $("$uv" --version)"
        [ -x .venv/bin/python ] || "$uv" venv --quiet --python "$python" .venv
        "$uv" pip install --quiet --python .venv/bin/python -c constraints.txt -e ".[$EXTRAS]"
        printf '%s' "$stamp" >.venv/airflow_tf.stamp
    fi
    export PATH=$ROOT/.venv/bin:$PATH
}

ensure_database() {
    local stamp
    stamp=$(cksum <constraints.txt)
    if [ "$(cat "$AIRFLOW_HOME/migrated" 2>/dev/null)" != "$stamp" ]; then
        say "Migrating Airflow's database in $AIRFLOW_HOME"
        airflow db migrate >"$STATE/migrate.log" 2>&1 || fail "airflow db migrate failed; see $STATE/migrate.log"
        printf '%s' "$stamp" >"$AIRFLOW_HOME/migrated"
    fi
}

# The real HDFS runs on the JVM; its jars are fetched by Maven.
ensure_hdfs_tools() {
    local missing=()
    java_is_recent || missing+=(openjdk-17-jdk-headless)
    command -v mvn >/dev/null || missing+=(maven)
    if [ ${#missing[@]} -gt 0 ]; then
        apt_install "JDK 17 and Maven (for HDFS)" "${missing[@]}"
    fi
}

# The simulated NVML of the tests is compiled.
ensure_compiler() {
    command -v cc >/dev/null || command -v gcc >/dev/null || apt_install "a C compiler (for the simulated NVML)" gcc libc6-dev
}

# The server for tests is started by them, in a private folder. Debian's package would start one of its own as well,
# unless told not to before it is installed.
ensure_postgres() {
    local drop_in=${POSTGRES_DROP_INS:-/etc/postgresql-common/createcluster.d}/airflow_tf.conf
    if has_postgres; then
        return
    fi
    if [ "$(id -u)" = 0 ]; then
        mkdir -p "$(dirname "$drop_in")"
        echo "create_main_cluster = false" >"$drop_in"
    fi
    apt_install "PostgreSQL (for the ledger)" postgresql
}

has_postgres() {
    local folder
    for folder in ${PATH//:/ } "${POSTGRES_HOME:-/usr/lib/postgresql}"/*/bin; do
        if [ -x "$folder/initdb" ] && [ -x "$folder/postgres" ]; then
            return
        fi
    done
    return 1
}

# The KDC for tests is started by them, in a private folder, as is the server above.
ensure_kerberos() {
    local program PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin
    for program in krb5kdc kdb5_util kadmin.local kinit; do
        command -v "$program" >/dev/null || {
            apt_install "MIT Kerberos (for HDFS with Kerberos)" krb5-kdc krb5-admin-server krb5-user
            return
        }
    done
}

# The pages in Airflow's interface are tested with a real browser.
ensure_chromium() {
    command -v "${CHROMIUM:-chromium}" >/dev/null || apt_install "Chromium (for the pages; or set CHROMIUM)" chromium
}

java_is_recent() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    "$java" -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])'
}
