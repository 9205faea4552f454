"""The gem: installed into an empty GEM_HOME, without a registry; its launcher and its Rack handler."""

import shutil

from support import (
    CHROOT_ENVIRONMENT,
    RACK,
    PackageTest,
    clean_environment,
    debian_copy,
    needs_root,
    package,
    project,
    run,
)

APPLICATION = """\
require "rails"
require "action_controller/railtie"

class Shop < Rails::Application
  config.root = File.expand_path("..", __dir__)
  config.eager_load = false
  config.secret_key_base = "0" * 64
  config.hosts.clear
  config.logger = Logger.new(nil)
end

class HelloController < ActionController::Base
  def index
    render plain: "hello #{request.path} from Rails"
  end
end
"""
ENVIRONMENT = """\
require_relative "application"
Shop.initialize!
Shop.routes.draw { match "*path", to: "hello#index", via: :all }
"""
BIN_RAILS = """\
APP_PATH = File.expand_path("../config/application", __dir__)
require "rails/commands"
"""


GEM = f"penstock-{project.VERSION}-x86_64-linux.gem"


class GemTest(PackageTest):
    def write_rails(self, below=""):
        """The smallest project of Rails."""
        config = 'require_relative "config/environment"\nrun Rails.application\n'
        self.write(f"{below}config.ru", config)
        self.write(f"{below}config/application.rb", APPLICATION)
        self.write(f"{below}config/environment.rb", ENVIRONMENT)
        self.write(f"{below}bin/rails", BIN_RAILS)


class Gem(GemTest):
    def setUp(self):
        super().setUp()
        self.home = self.folder / "gems"
        self.environment = clean_environment(GEM_HOME=str(self.home), GEM_PATH="")
        # The gems of the system too: Rack and Rails.
        self.with_system = clean_environment(GEM_HOME=str(self.home))
        gem = package(GEM)
        run("gem", "install", "--local", "--no-document", gem, env=self.environment)
        self.launcher = self.home / "bin/penstock"

    def test_the_launcher_serves_an_application(self):
        self.write("config.ru", RACK)
        server = self.serve(
            self.launcher, "serve", "--listen", "127.0.0.1:0", "--admin", "off",
            cwd=self.folder, env=self.with_system,
        )  # fmt: skip
        self.assert_serves(server, "hello /some/path")

    def test_rackup_starts_it_by_its_name(self):
        self.write("config.ru", RACK)
        server = self.serve(
            "rackup", "-s", "penstock", "-p", "0", "-o", "127.0.0.1", "-E", "production",
            "-O", "Threads=3", "-O", "Admin=off", "config.ru",
            cwd=self.folder, env=self.with_system | {"RUBYOPT": "-W0"},
        )  # fmt: skip
        self.assert_serves(server, "hello /some/path")

    def test_rails_server_starts_it_by_its_name(self):
        self.write_rails()
        server = self.serve(
            "ruby", "bin/rails", "server", "-u", "penstock", "-p", "0", "-b", "127.0.0.1",
            "-e", "production",
            cwd=self.folder, env=self.with_system | {"RUBYOPT": "-W0", "PENSTOCK_ADMIN": "off"},
        )  # fmt: skip
        self.assert_serves(server, "hello /some/path from Rails")

    def test_nothing_of_it_is_left_after_it_is_removed(self):
        self.assertIn(project.VERSION, run(self.launcher, "-V", env=self.environment))
        run("gem", "uninstall", "--all", "--executables", "penstock", env=self.environment)
        left = [path for path in self.home.rglob("*penstock*") if path.is_file()]
        self.assertEqual(left, [])


@needs_root
class Rack3(GemTest):
    """A Debian with Rack 3, whose `rackup` is a gem of its own, and Rails 7."""

    def setUp(self):
        super().setUp()
        root = self.enterContext(debian_copy(self.folder, "trixie"))
        shutil.copy(package(GEM), root / "tmp")
        self.chroot = ["chroot", root, "env", "-C", "/srv"]
        self.below = f"{root.relative_to(self.folder)}/srv/"
        run(
            *self.chroot, "gem", "install", "--local", "--no-document", f"/tmp/{GEM}",
            env=CHROOT_ENVIRONMENT,
        )  # fmt: skip

    def ruby(self, script):
        return run(*self.chroot, "ruby", "-e", script, env=CHROOT_ENVIRONMENT).strip()

    def test_rackup_starts_it_by_its_name(self):
        self.assertEqual(self.ruby('require "rack"; puts Rack.release[0]'), "3")
        self.write(f"{self.below}config.ru", RACK)
        server = self.serve(
            *self.chroot, "rackup", "-s", "penstock", "-p", "0", "-o", "127.0.0.1",
            "-E", "production", "-O", "processes=2", "-O", "Admin=off", "config.ru",
            env=CHROOT_ENVIRONMENT,
        )  # fmt: skip
        self.assert_serves(server, "hello /some/path")

    def test_rails_server_starts_it_by_its_name(self):
        major = self.ruby('require "rails"; puts Rails::VERSION::MAJOR')
        self.assertGreaterEqual(int(major), 7)
        self.write_rails(self.below)
        server = self.serve(
            *self.chroot, "ruby", "bin/rails", "server", "-u", "penstock", "-p", "0",
            "-b", "127.0.0.1", "-e", "production",
            env=CHROOT_ENVIRONMENT | {"PENSTOCK_ADMIN": "off"},
        )  # fmt: skip
        self.assert_serves(server, "hello /some/path from Rails")
