#!/usr/bin/env bash
# Everything that touches a Tinker-compatible service, against a real server (SkyRL's, JAX on the CPU, loopback): makes an environment of its
# own, runs tests/tinker, leaves nothing running. Some minutes on 2 cores with installation. Its last line is pytest's.
#
# The client's environment is what docs/tinker.md tells a user to install, and pytest; what the server needs besides lies in a folder that the
# server alone sees, and so does the second version of tinker-cookbook that the adapter claims.
#
#   tests/tinker/ci.sh [pytest arguments]     (-m slow tests/tinker/test_a_run.py: what these minutes have no room for)
#   TINKER_VENV=DIR    where the environment is made, default .venv-tinker; one that is complete is used as it is
set -euo pipefail
cd "$(dirname "$0")/../.."
venv="${TINKER_VENV:-.venv-tinker}"
case "$venv" in /*) ;; *) venv="$PWD/$venv" ;; esac
# --no-compile: a quarter of the time goes into compiling modules that nothing imports
pip() { "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile "$@" 2> >(grep -v "is ignored: it is neither" >&2); }
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

wanted="$(cat tests/tinker/ci.sh tests/tinker/requirements.txt pyproject.toml constraints.txt | cksum) $PWD"
if [ "$(cat "$venv/.made" 2>/dev/null || true)" != "$wanted" ]; then
  echo "== making $venv: pip install 'rollonce[tinker]', as docs/tinker.md says, and a server beside it (2.5 GB, a few minutes)"
  "${PYTHON:-python3}" -m venv --clear "$venv"
  pip --constraint constraints.txt --editable '.[tinker]'
  pip --constraint constraints.txt pytest pytest-xdist
  # skyrl 0.4.0 says that it needs Python 3.12, and does not; tinker-cookbook 0.6.1 names a tml-renderers that some indexes lack.
  pip --no-deps --target "$venv/server" -r tests/tinker/requirements.txt
  pip --no-deps --target "$venv/server" --ignore-requires-python skyrl==0.4.0
  pip --no-deps --target "$venv/cookbook-0.6.1" tinker-cookbook==0.6.1
  echo "$wanted" >"$venv/.made"
fi
export COOKBOOK_061="$venv/cookbook-0.6.1" SERVER_PACKAGES="$venv/server"
echo "== tests/tinker against a real server"
# Two workers with a server each: while one's server computes, the other's recipe imports.
[ $# -gt 0 ] || set -- -n 2 --dist loadfile --no-loadscope-reorder tests/tinker
exec "$venv/bin/python" -m pytest -c tests/tinker/pytest.ini --rootdir tests/tinker "$@"
