#!/usr/bin/env bash
# Runs the adapters' tests against the real trainers, each in an environment of its own (about 2 GB and 3 minutes each, CPU only).
#   tests/integrations/run_real.sh            all of them
#   tests/integrations/run_real.sh verl       one of: verl, skyrl, openrlhf, prime_rl, rllm, slime, miles
# The last four are not on PyPI. PRIME_RL, RLLM, SLIME and MILES name a checkout of each: 559b447, 9beb6e0, 624b824 and
# 31f1ca9 are those that the adapters were written to.
# ROLLONCE_REAL: where the environments go (default: a folder in the system's temporary one). PYTHON, PYTHON312: the interpreters.
set -euo pipefail
cd "$(dirname "$0")/../.."
where=${ROLLONCE_REAL:-${TMPDIR:-/tmp}/rollonce-real}
export OMP_NUM_THREADS=1 RAY_USAGE_STATS_ENABLED=0 WANDB_MODE=disabled RAY_raylet_start_wait_time_s=300 RAY_agent_register_timeout_ms=300000
torch="torch==2.13.0"

environment() { # name, interpreter: makes it unless it is finished
  [ -e "$where/$1/.done" ] && return 1
  echo "== $1: making $where/$1"
  "$2" -m venv "$where/$1"
}

verl() {
  if environment verl "${PYTHON:-python3}"; then
    "$where/verl/bin/pip" install -q $torch verl==0.9.1 TransferQueue==0.1.11 pyzmq msgspec cachetools fastapi uvicorn pytest -e .
    touch "$where/verl/.done"
  fi
}

skyrl() { # its extra skyrl-train wants flash-attn and nixl, which have no CPU build: what its trainer module imports, by name
  if environment skyrl "${PYTHON312:-python3.12}"; then
    "$where/skyrl/bin/pip" install -q $torch skyrl==0.4.0 ray==2.57.0 loguru jaxtyping omegaconf hydra-core tensordict torchdata \
      func_timeout polars pybase64 aiohttp pytest -e .
    "$where/skyrl/bin/pip" install -q --no-deps skyrl-gym
    touch "$where/skyrl/.done"
  fi
}

openrlhf() { # its wheel wants flash-attn and bitsandbytes: without them, and DeepSpeed without compiled operators
  if environment openrlhf "${PYTHON:-python3}"; then
    "$where/openrlhf/bin/pip" install -q $torch ray==2.55.0 transformers==5.15.0 accelerate peft datasets jsonlines torchdata tqdm einops \
      optree sympy pylatexenc aiohttp pynvml packaging setuptools wheel ninja py-cpuinfo psutil hjson msgpack pydantic pillow pytest -e .
    DS_BUILD_OPS=0 "$where/openrlhf/bin/pip" install -q --no-deps --no-build-isolation deepspeed==0.19.6
    "$where/openrlhf/bin/pip" install -q --no-deps openrlhf==0.11.2
    touch "$where/openrlhf/.done"
  fi
}

# The four whose checkout is put on the path share one environment, without vLLM, SGLang and Megatron, which the tested
# parts do not need.
from_source() {
  if environment from_source "${PYTHON312:-python3.12}"; then
    "$where/from_source/bin/pip" install -q $torch verifiers==0.3.1 "prime-pydantic-config[toml]" transformers==5.6.2 datasets wandb \
      msgspec loguru pyarrow beartype jaxtyping tenacity orjson setproctitle uvloop pandas aiolimiter tomli tomli-w ray==2.55.0 \
      omegaconf hydra-core pybase64 polars tqdm codetiming pytest -e .
    touch "$where/from_source/.done"
  fi
}
prime_rl() { from_source; checkout="${PRIME_RL:?a checkout of prime-rl}/src:$PRIME_RL/packages/prime-rl-configs/src"; }
rllm() { from_source; checkout=${RLLM:?a checkout of rLLM}; }
slime() { from_source; checkout=${SLIME:?a checkout of slime}; }
miles() { from_source; checkout=${MILES:?a checkout of miles}; }

for trainer in "${@:-verl skyrl openrlhf ${PRIME_RL:+prime_rl} ${RLLM:+rllm} ${SLIME:+slime} ${MILES:+miles}}"; do
  for name in $trainer; do
    checkout=
    "$name"
    test=tests/integrations/test_${name/miles/slime}.py
    home=$where/$name
    [ -n "$checkout" ] && home=$where/from_source
    echo "== $name: $test"
    PYTHONPATH=$checkout "$home/bin/python" -m pytest "$test" -p no:cacheprovider -W ignore -rs
  done
done
