"""The gem: installed into an empty GEM_HOME, without a registry; its launcher and its Rack handler."""

from support import RACK, PackageTest, clean_environment, package, project, run

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


class Gem(PackageTest):
    def setUp(self):
        super().setUp()
        self.home = self.folder / "gems"
        self.environment = clean_environment(GEM_HOME=str(self.home), GEM_PATH="")
        # The gems of the system too: Rack and Rails.
        self.with_system = clean_environment(GEM_HOME=str(self.home))
        gem = package(f"penstock-{project.VERSION}-x86_64-linux.gem")
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
            "-O", "Threads=3", "config.ru",
            cwd=self.folder, env=self.with_system | {"RUBYOPT": "-W0"},
        )  # fmt: skip
        self.assert_serves(server, "hello /some/path")

    def test_rails_server_starts_it_by_its_name(self):
        self.write("config.ru", 'require_relative "config/environment"\nrun Rails.application\n')
        self.write("config/application.rb", APPLICATION)
        self.write("config/environment.rb", ENVIRONMENT)
        self.write("bin/rails", BIN_RAILS)
        server = self.serve(
            "ruby", "bin/rails", "server", "-u", "penstock", "-p", "0", "-b", "127.0.0.1",
            "-e", "production",
            cwd=self.folder, env=self.with_system | {"RUBYOPT": "-W0"},
        )  # fmt: skip
        self.assert_serves(server, "hello /some/path from Rails")

    def test_nothing_of_it_is_left_after_it_is_removed(self):
        self.assertIn(project.VERSION, run(self.launcher, "-V", env=self.environment))
        run("gem", "uninstall", "--all", "--executables", "penstock", env=self.environment)
        left = [path for path in self.home.rglob("*penstock*") if path.is_file()]
        self.assertEqual(left, [])
