# The project's commands, the same on a laptop and in CI. `make run` takes a new clone to a served
# page; `make test` runs every check that must pass before a change lands. Each step is a script or
# one cargo command and says in one line what it does.

BIN := $(or $(CARGO_TARGET_DIR),target)
FUZZ_SECONDS ?= 60
# Rust tests at once. More than processors, because many wait for a server.
TEST_THREADS ?= $(shell expr 2 '*' "$$(nproc)")

.NOTPARALLEL:
.PHONY: run build release deny test test-rust test-workers test-real test-hardened test-backends test-applications test-tls test-migrations packages test-packages site fuzz clean

run:
	@echo "== set up the guestbook, build, serve it"
	@scripts/setup run
	@cargo build --profile quick -p penstock
	@exec $(BIN)/quick/penstock serve examples/guestbook

build:
	@echo "== build (debug)"
	@cargo build --workspace

release:
	@echo "== the binary for production: built, trained, built again"
	@scripts/release

# All of it takes an hour on two cores; with PROFILE=quick a third.
packages:
	@echo "== binaries for three targets, and every package of them"
	@scripts/setup packages
	@packaging/all

test: test-rust test-workers test-real
	@echo "== all tests passed"

test-rust:
	@echo "== set up what the tests need"
	@scripts/setup test
	@echo "== formatting"
	@cargo fmt --all --check
	@echo "== clippy"
	@cargo clippy --workspace --all-targets -- -D warnings
	@# The fuzz targets, without the fuzzer: it takes a C++ compiler.
	@CUSTOM_LIBFUZZER_PATH=/dev/null cargo clippy --manifest-path fuzz/Cargo.toml --target-dir target -- -D warnings
	@$(MAKE) --no-print-directory deny
	@echo "== documentation"
	@RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	@echo "== Rust tests"
	@RUST_TEST_THREADS=$(TEST_THREADS) cargo test --workspace

# The rules for dependencies are in deny.toml.
deny:
	@echo "== dependencies"
	@scripts/setup test
	@scripts/deny

test-workers:
	@scripts/setup test
	@echo "== ruff"
	@.venv/bin/ruff check --quiet --no-cache examples tests crates/apps/workers benches packaging
	@.venv/bin/ruff format --quiet --no-cache --check examples tests crates/apps/workers benches packaging
	@echo "== Python worker: the scripts alone"
	@PENSTOCK_NATIVE=off .venv/bin/python -B -m unittest discover -s crates/apps/workers/python/tests
	@echo "== Python worker: with its native part"
	@mkdir -p $(BIN)/native
	@cc -O2 -Wall -Wextra -Wno-missing-field-initializers -fPIC -fvisibility=hidden -shared -nostdlib \
	  -o $(BIN)/native/python.so $(addprefix crates/apps/workers/native/,python.c asgi_*.c)
	@PENSTOCK_NATIVE=$(abspath $(BIN))/native/python.so \
	  .venv/bin/python -B -m unittest discover -s crates/apps/workers/python/tests
	@echo "== Ruby worker: the scripts alone"
	@PENSTOCK_NATIVE=off ruby crates/apps/workers/ruby/test/all.rb
	@echo "== Ruby worker: with its native part"
	@cc -O2 -Wall -Wextra -Wno-missing-field-initializers -fPIC -fvisibility=hidden -shared -nostdlib -Wl,-z,now \
	  -o $(BIN)/native/ruby.so crates/apps/workers/native/ruby.c
	@PENSTOCK_NATIVE=$(abspath $(BIN))/native/ruby.so ruby crates/apps/workers/ruby/test/all.rb

test-real: build
	@scripts/setup test
	@echo "== real programs"
	@scripts/test-real

# Separate: it needs root, and takes as long as all other tests.
test-hardened:
	@echo "== integration tests under the unit of docs/deployment.md"
	@scripts/test-hardened

# Separate: it installs php-fpm, Tomcat, uWSGI, Puma and more, which nothing else needs.
test-backends: build
	@scripts/setup backends
	@echo "== real back ends"
	@scripts/test-real test_backends test_backends_tunnels test_php_sites

# Separate: thirty frameworks, Python ones each in its own virtual environment.
test-applications: build
	@scripts/setup applications
	@echo "== applications at their first try"
	@PENSTOCK_APPLICATIONS=1 scripts/test-real test_applications test_quickstarts

# Separate: programs that test a server's TLS take minutes.
test-tls: build
	@scripts/setup tls
	@echo "== TLS, looked at by testssl.sh and sslyze"
	@scripts/test-real test_tls

# Separate: Caddy, HAProxy, Apache, php-fpm, Gunicorn, Puma, Passenger and uWSGI, each with its file
# and ours, and a login service.
# What needs nginx alone runs with the other tests.
test-migrations: build
	@scripts/setup migrations
	@echo "== other servers and the translations of their files"
	@scripts/test-real test_migrations test_migration_pages test_logins

# Separate: it needs root, installs what only packages need, and tries what `make packages` built.
test-packages:
	@scripts/setup packages
	@echo "== each package, installed in a clean environment"
	@/usr/bin/python3 -B -m unittest discover --verbose -s packaging/tests

# The pictures in it are of the debug build.
site:
	@scripts/setup site
	@cargo build -p penstock
	@echo "== pictures for the site"
	@scripts/test-real test_screenshots
	@echo "== the site: built, and looked at"
	@scripts/test-real test_documents test_site
	@echo "site: $(BIN)/site/index.html (penstock serve --files $(BIN)/site: search needs a server)"

fuzz:
	@echo "== fuzz each target for $(FUZZ_SECONDS) s"
	@scripts/fuzz $(FUZZ_SECONDS)

clean:
	@echo "== remove what was built (not what the examples have stored)"
	@cargo clean --quiet
	@rm -rf .venv .tools examples/*/.venv fuzz/target packaging/.venv packaging/bin packaging/tests/.venv docs/site/.venv
