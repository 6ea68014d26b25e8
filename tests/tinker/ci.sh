#!/usr/bin/env bash
# Everything that touches a Tinker-compatible service, against a real server (SkyRL's, JAX on the CPU, loopback): makes an environment of its
# own, runs tests/tinker, leaves nothing running. Under 8 minutes on 2 cores with installation. Its last line is pytest's.
#
#   tests/tinker/ci.sh [pytest arguments]     (-m slow tests/tinker/test_a_run.py: what the eight minutes have no room for)
#   TINKER_VENV=DIR    where the environment is made, default .venv-tinker; one that is complete is used as it is
set -euo pipefail
cd "$(dirname "$0")/../.."
venv="${TINKER_VENV:-.venv-tinker}"
# --no-compile: a quarter of the time goes into compiling modules that nothing imports
# (sed: pip warns about every index location that is not there, once for each package)
pip() { "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile "$@" 2>&1 | sed '/^WARNING: Location .* is ignored: it is /d'; }
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

wanted="$(cat tests/tinker/ci.sh tests/tinker/requirements.txt | cksum) $PWD"
if [ "$(cat "$venv/.made" 2>/dev/null || true)" != "$wanted" ]; then
  echo "== making $venv: the server and the client of a Tinker-compatible service (2.5 GB, a few minutes)"
  "${PYTHON:-python3}" -m venv --clear "$venv"
  # One after the other: skyrl 0.4.0 says that it needs Python 3.12 and tinker-cookbook 0.6.1 a tml-renderers that no index has, and neither does.
  pip torch==2.13.0
  pip --no-deps -r tests/tinker/requirements.txt
  pip --no-deps --ignore-requires-python skyrl==0.4.0 tinker-cookbook==0.6.1
  pip --no-deps --target "$venv/cookbook-0.5.8" tinker-cookbook==0.5.8
  pip --no-deps --editable .
  echo "$wanted" >"$venv/.made"
fi
export COOKBOOK_058="$PWD/$venv/cookbook-0.5.8"
case "$venv" in /*) COOKBOOK_058="$venv/cookbook-0.5.8" ;; esac
echo "== tests/tinker against a real server"
# Two workers with a server each: while one's server computes, the other's recipe imports.
[ $# -gt 0 ] || set -- -n 2 --dist loadfile --no-loadscope-reorder tests/tinker
exec "$venv/bin/python" -m pytest -c tests/tinker/pytest.ini --rootdir tests/tinker "$@"
