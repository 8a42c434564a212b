# The commands of this repository; `make help` lists them. Each that needs the environment makes it first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-wishes serve test lint perf train clean
MAKEFLAGS += --no-print-directory

# The Pythons to try, in this order; the first that can serve makes .venv.
PYTHON ?= python3 python3.12 python3.11
# The build of torch, at the version in constraints.txt, and more arguments for pip, such as an index that has the
# build of your choice: make setup PIP_ARGS="--extra-index-url ..."
TORCH_SPEC ?= torch==2.13.0
PYTRITON_SPEC ?= nvidia-pytriton==0.7.0
PIP_ARGS ?=
# Arguments for the server, for pytest and for the benchmarks, and which benchmarks to run: all.
SERVE_ARGS ?=
TEST_ARGS ?=
PERF_ARGS ?=
BENCH ?=

# The demo. Files of poses and intrinsics are read as LingBot-World ships them, one pose a video frame and intrinsics
# of an 832x480 picture; POSE_RATE and INTRINSICS_SIZE say otherwise. POSES may also be walk, pan, orbit or stand.
PICTURE ?= client/pictures/start.png
# Unless POSES or ACTIONS says otherwise: a walk with turns, beginning with a moment of standing still.
DEMO_ACTIONS := .wwww[wl][wl]llllww[wj]jjjww
POSE_RATE ?= frame
INTRINSICS_SIZE ?= 832x480
# Their unit is arbitrary: auto makes the longest step one unit of the model, as they are meant.
TRANSLATION_SCALE ?= auto
export PICTURE POSES POSE_RATE POSE_CONVENTION INTRINSICS INTRINSICS_SIZE TRANSLATION_SCALE ACTIONS PROMPT SEED STEPS CHUNKS
GENERATE = .venv/bin/worldstream generate "$$PICTURE" \
	-o demo/world.mp4 --contact-sheet demo/contact_sheet.png \
	$${POSES:+--path "$$POSES" --pose-rate "$$POSE_RATE"} \
	$${POSE_CONVENTION:+--pose-convention "$$POSE_CONVENTION"} \
	$$(if [ -f "$$POSES" ]; then echo "--translation-scale $$TRANSLATION_SCALE"; fi) \
	$${INTRINSICS:+--intrinsics "$$INTRINSICS" --intrinsics-size "$$INTRINSICS_SIZE"} \
	$${TRUTH:+--truth "$$TRUTH"} \
	$${ACTIONS:+--actions "$$ACTIONS"} $${PROMPT:+--prompt "$$PROMPT"} \
	$${SEED:+--seed "$$SEED"} $${STEPS:+--steps "$$STEPS"} $${CHUNKS:+--chunks "$$CHUNKS"}

VENV_PYTHON := .venv/bin/python
PIP = $(VENV_PYTHON) -m pip install --disable-pip-version-check $$([ -t 2 ] || echo --quiet) -c constraints.txt $(PIP_ARGS)
# What the environment is made from. The same answer as last time means that there is nothing to do.
SETUP_KEY = { echo '$(TORCH_SPEC) $(PYTRITON_SPEC)'; cat pyproject.toml constraints.txt .venv/pyvenv.cfg; } | sha256sum

help: ## list the commands
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## make .venv with all packages (again only when their list has changed)
	@if $(VENV_PYTHON) -c '' 2>/dev/null && [ "$$($(SETUP_KEY))" = "$$(cat .venv/setup-key 2>/dev/null)" ]; then
		exit 0
	fi
	if ! $(VENV_PYTHON) -m pip --version >/dev/null 2>&1; then
		chosen= reasons=
		for candidate in $(PYTHON); do
			if ! command -v "$$candidate" >/dev/null; then continue; fi
			if reason=$$("$$candidate" serve.py --check-python 2>&1 >/dev/null); then chosen=$$candidate; break; fi
			reasons+="$$reason"$$'\n'
		done
		if [ -z "$$chosen" ]; then
			printf '%smake setup: none of these can serve: %s\n' "$$reasons" '$(PYTHON)' >&2
			echo 'Mend what is named above, or name another: make setup PYTHON=/path/to/python3.12' >&2
			exit 1
		fi
		echo "make setup: making .venv with $$("$$chosen" --version)" >&2
		"$$chosen" -m venv --clear .venv
	fi
	echo 'make setup: installing packages into .venv; the first time that is about 2 GB and 2-5 minutes' >&2
	$(PIP) '$(TORCH_SPEC)' --editable '.[server,dev]' >&2
	$(PIP) --no-deps '$(PYTRITON_SPEC)' >&2
	$(SETUP_KEY) > .venv/setup-key

# Said before minutes of setup and start, in the words of the command line.
demo-wishes:
	@refuse() { echo "make demo: $$1" >&2; exit 1; }
	[ -f "$$PICTURE" ] || refuse "there is no picture $$PICTURE; name one with PICTURE=FILE"
	if [ -n "$$POSES" ] && [ -n "$$ACTIONS" ]; then refuse 'POSES, ACTIONS: one of them steers, both came'; fi
	no_keys=$$(printf %s "$$ACTIONS" | tr -d '[:space:].,[]wasdijkl')
	[ -z "$$no_keys" ] ||
		refuse "ACTIONS: '$${no_keys:0:1}' is no key; w a s d move, i j k l look, . stands still"
	if [ -n "$$POSES" ] && [ ! -f "$$POSES" ] && [[ ! "$$POSES" =~ ^(walk|pan|orbit|stand)$$ ]]; then
		refuse "POSES: wanted walk, pan, orbit, stand or a .npy file, got $$POSES"
	fi
	is_integer='^-?[0-9]+$$'
	for name in STEPS CHUNKS; do
		[[ -z "$${!name}" || "$${!name}" =~ $$is_integer ]] || refuse "$$name: wanted an integer, got $${!name}"
	done
	[ -z "$$STEPS" ] || { [ "$$STEPS" -ge 1 ] && [ "$$STEPS" -le 50 ]; } || refuse "STEPS: wanted 1 to 50, got $$STEPS"
	[ -z "$$CHUNKS" ] || [ "$$CHUNKS" -ge 1 ] || refuse "CHUNKS: wanted 1 or more, got $$CHUNKS"

demo: demo-wishes setup ## stream a walk into PICTURE as demo/world.mp4 and demo/contact_sheet.png
	@mkdir -p demo
	if [ -z "$$POSES$$ACTIONS" ]; then export ACTIONS='$(DEMO_ACTIONS)'; fi
	# Where the walk begins at the shipped picture, the sheet also shows what the camera should have seen.
	if [ "$$PICTURE" = client/pictures/start.png ] && [ -z "$$POSES" ]; then
		export TRUTH=demo/truth.npy
		$(VENV_PYTHON) model_repository/denoise/training/draw_walk.py --actions "$$ACTIONS" \
			$${PROMPT:+--prompt "$$PROMPT"} $${CHUNKS:+--chunks "$$CHUNKS"} --truth "$$TRUTH"
	fi
	# exec: a signal goes to the program itself, which then closes what it writes.
	$(VENV_PYTHON) serve.py --free-ports --log-file demo/server.log $(SERVE_ARGS) --run 'exec $(GENERATE)'
	echo 'make demo: see demo/world.mp4 and demo/contact_sheet.png' >&2

serve: setup ## run the server in the foreground, on ports 8000 (HTTP), 8001 (gRPC), 8002 (metrics)
	@exec $(VENV_PYTHON) serve.py $(SERVE_ARGS)

test: setup ## run all tests
	@$(VENV_PYTHON) -m pytest $(TEST_ARGS)

lint: setup ## check style and types
	@$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy serve.py docker/launcher client/worldstream
	# Each version folder apart: each has a module that is called model.
	for folder in model_repository/{preprocess/1,denoise/1,denoise/training}; do $(VENV_PYTHON) -m mypy "$$folder"; done
	# Nor can a script have the name of a package; what it starts is checked. Neither these nor tests run on Python 3.10.
	$(VENV_PYTHON) -m mypy --python-version 3.11 --exclude '^perf/ingest\.py$$' perf
	$(VENV_PYTHON) -m mypy --python-version 3.11 $$(find tests -name '*.py' ! -name 'test_*')

# BENCH="transport ingest" runs these alone. PERF_ARGS: see perf/run.py --help.
perf: setup ## run the benchmarks and write perf/results/MACHINE/report.md: a quarter of an hour on 2 quiet cores
	@$(VENV_PYTHON) perf/run.py $(if $(BENCH),--only $(BENCH)) $(PERF_ARGS)

# MINUTES of training in all; without it, the full number of steps. TRAIN_ARGS: see train.py --help. Stop it at any time:
# the same command goes on from there.
train: setup ## make the embedded world's weights anew: about 10 hours on 2 cores, minutes on a GPU
	@$(VENV_PYTHON) model_repository/denoise/training/train.py $(if $(MINUTES),--minutes '$(MINUTES)') $(TRAIN_ARGS)

clean: ## remove what the commands made, the environment included
	@rm -rf .venv demo .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info client/*.egg-info build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
