# `make demo` and `make test` work on a fresh machine: each sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Every worker and every process that a test starts would compile all files again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test tests coverage test-slow fuzz soak lint docs pages results notebooks packages tasks bench-step bench-unchanged bench-corruptions bench-gpu bench-architectures bench-scenes bench-safety bench-guards bench-serve bench-poisoning bench-demo clean

setup: $(READY)

# The constraints pin torch before anything else can ask for a newer one.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,docs]'
	touch $@

demo: setup
	$(BIN)/driftproof demo

# Files stay whole, so that what is dear to set up is set up once, and in order: else those with few tests, which can be
# the slow ones, would come last, when the other workers have nothing left. One worker more than cores, since some
# tests wait for a server or another process; one thread each.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
tests coverage test-slow: export OMP_NUM_THREADS = 1
# The tests build the documents, strictly. Types are checked meanwhile, since mypy uses one core only.
test: setup
	$(MAKE) --no-print-directory --jobs 2 lint tests

tests: setup
	$(BIN)/python -m pytest $(PARALLEL)

coverage: setup
	$(BIN)/python -m pytest $(PARALLEL) --cov

test-slow: setup
	$(BIN)/python -m pytest $(PARALLEL) -m slow

# A hundred thousand damaged files, for every reader some.
fuzz: export OMP_NUM_THREADS = 1
fuzz: setup
	PYTHONPATH=tests $(BIN)/python tests/fuzz_readers.py --inputs $(or $(INPUTS),100000) --out results/fuzz
	DRIFTPROOF_FUZZ=20 $(BIN)/python -m pytest -q tests/test_upload_faults.py

# 100,000 batches, killed again and again, against a run left alone. About half an hour on two busy cores.
soak: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/soak.py --out results/soak

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	$(BIN)/mkdocs build --strict

# Documentation and the demo's page in Chromium, wide and narrow, light and dark: contrast, alternative texts, width.
pages: setup
	mkdir -p site-screenshots
	DRIFTPROOF_SCREENSHOTS=site-screenshots $(BIN)/python -m pytest -m slow tests/test_site.py

# Wheel and sdist, each installed in new environments of INSTALL_PYTHON, with the README's example run there.
# INSTALL_PYTHON='python3.10 python3.13' and INSTALL_TORCH='2.6.0' try others.
packages: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python tests/install_packages.py dist --python $(or $(INSTALL_PYTHON),$(BIN)/python) \
	  $(if $(INSTALL_TORCH),--torch $(INSTALL_TORCH)) $(addprefix --out ,$(INSTALL_OUT))

# The demo's high rate, the demo for five seeds, its pictures, and the animation of the README.
bench-demo: setup
	$(BIN)/python benchmarks/demo_rate.py --out results/demo
	$(BIN)/python benchmarks/demo_seeds.py --out results/demo
	$(BIN)/python benchmarks/demo_pictures.py --results results/demo
	PATH=$(BIN):$$PATH $(BIN)/python benchmarks/animation.py

# Five tasks of a new user, from the docs alone, in a new environment with the wheel of `make packages`.
# torchvision has to be of the same build as torch: TASKS_TORCH=torch===2.13.0 where an index offers several.
tasks: setup
	$(BIN)/python benchmarks/first_tasks.py $(firstword $(wildcard dist/*.whl)) --out results/tasks \
	  $(addprefix --torch ,$(TASKS_TORCH))

# Runs the notebooks and stores what they print.
notebooks: setup
	cd examples/notebooks && ../../$(BIN)/python run.py

# Everything that quotes a number quotes it from here.
results: setup
	rm -rf results/figures
	$(BIN)/driftproof analyze figures $(addprefix results/,classification gradients tiny camvid) --out results/figures
	$(BIN)/python benchmarks/precision.py $(addprefix results/,speed/fp32 classification speed/bf16 speed/bf16-compile) \
	  --out results/speed/precision.md
	$(BIN)/python benchmarks/precision.py $(addprefix results/speed/short-,fp32 bf16 bf16-graph) \
	  --out results/speed/precision-short.md
	$(BIN)/python benchmarks/precision.py results/speed/first-rounds results/classification --round 1 \
	  --out results/speed/precision-first.md
	$(BIN)/python benchmarks/precision.py results/speed/bf16-first results/classification --round 1 \
	  --out results/speed/precision-open.md
	$(BIN)/python benchmarks/precision.py results/speed/before results/classification --round 1 \
	  --out results/speed/precision-before.md
	$(BIN)/python benchmarks/precision.py results/speed/defaults results/classification --round 5 \
	  --out results/speed/precision-later.md
	$(BIN)/python benchmarks/pictures.py
	$(BIN)/python benchmarks/method_pages.py
	$(BIN)/driftproof bench leaderboard $(wildcard results/leaderboard/*) results/sentinel/earlier-default results/classification \
	  --out docs/leaderboard.md
	$(BIN)/python benchmarks/sentinel_page.py results/sentinel/proof --out docs/sentinel.md
	$(BIN)/driftproof bench summarize results $(addprefix --fill ,README.md $(addprefix docs/,reproducing.md speed.md driving.md))

bench-step: setup
	$(BIN)/python benchmarks/step.py

# The results of every method, bit for bit those of COMMIT? Some minutes.
bench-unchanged: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/unchanged.py $(or $(COMMIT),main)

bench-corruptions: setup
	$(BIN)/python benchmarks/corruptions.py

# With DATA (the folder of CIFAR-10) and WEIGHTS (its network) this also compares the engines on real images.
bench-gpu: setup
	$(BIN)/python benchmarks/gpu.py
	test -z "$(DATA)" || $(BIN)/python benchmarks/agreement.py --data $(DATA) --weights $(WEIGHTS)

# Needs timm and torchvision; uses a GPU where there is one.
bench-architectures: setup
	$(BIN)/python benchmarks/architectures.py --out results/architectures

bench-scenes: setup
	$(BIN)/python benchmarks/scenes.py --engine graph --channels-last

# Both need DATA (the folder of CIFAR-10) and WEIGHTS (the folder of its network); DEVICE=cuda uses a GPU.
bench-safety: setup
	$(BIN)/python benchmarks/safety.py --data $(DATA) --weights $(WEIGHTS) --out results/safety --device $(or $(DEVICE),cpu) \
	  --workers $(or $(WORKERS),1)

bench-guards: setup
	$(BIN)/python benchmarks/guards.py --data $(DATA) --weights $(WEIGHTS) --out results/guards --device $(or $(DEVICE),cpu) \
	  --workers $(or $(WORKERS),1)

# Client processes, misbehaving clients, kills and restarts; 12 minutes, on loopback.
bench-serve: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/serve_load.py --out results/serve

# Needs DATA and WEIGHTS as well.
bench-poisoning: setup
	$(BIN)/python benchmarks/poisoning.py --data $(DATA) --weights $(WEIGHTS) --out results/poisoning \
	  --device $(or $(DEVICE),cpu) --workers $(or $(WORKERS),1)

clean:
	rm -rf $(VENV) site site-screenshots tasks-environment .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
