"""Back ends in Ruby: Puma, Thin, Unicorn, WEBrick, and ten FastCGI processes."""

from backends import HERE, Backend, need, need_ruby


class Puma(Backend):
    """Puma on a Unix socket, four threads."""

    def start(self):
        self.run(
            *(need("puma", "puma"), "--bind", f"unix://{self.socket()}", "--threads", "4:4"),
            *("--environment", "production", HERE / "app.ru"),
            ready="Ctrl-C",
        )


class Thin(Backend):
    """Thin, which serves one request at a time and sends a body once it is complete."""

    settings = "max_active = 1"
    streams = False

    def start(self):
        self.run_until_it_listens(
            *(need("thin", "thin"), "--socket", self.socket(), "--rackup", HERE / "app.ru"),
            *("--environment", "production", "start"),
        )


class Unicorn(Backend):
    """Unicorn with two workers, which closes after each response and needs a proxy for slow
    clients."""

    settings = "max_active = 2"

    def start(self):
        config = self.folder / "unicorn.rb"
        config.write_text(f'worker_processes 2\nlisten "{self.socket()}"\n')
        self.run(
            *(need("unicorn", "unicorn"), "--config-file", config, "--env", "production"),
            HERE / "app.ru",
            ready="worker=1 ready",
        )


class Webrick(Backend):
    """WEBrick, over TCP on a port of its own choice; Rack passes it whole bodies."""

    streams = False
    methods = ("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")

    def start(self):
        script = (
            "require 'rack'; require 'webrick'; "
            "app = Rack::Builder.parse_file(ARGV[0]); app = app.first if app.is_a?(Array); "
            "server = WEBrick::HTTPServer.new(Port: 0, BindAddress: '127.0.0.1', AccessLog: []); "
            "server.mount('/', Rack::Handler::WEBrick, app); "
            "trap('TERM') { server.shutdown }; "
            'puts "webrick on #{server.listeners[0].addr[1]}"; $stdout.flush; server.start'
        )
        ruby = need_ruby("ruby-webrick", "rack", "webrick")
        command = (ruby, "-e", script, HERE / "app.ru")
        found = self.run(*command, ready=r"^webrick on (\d+)")
        self.servers = [f"127.0.0.1:{found[1]}"]


class RubyFastCgi(Backend):
    """Ten processes with the fcgi library, each on its own Unix socket, one request at a time.

    Rack's handler gives the whole body to the library, which sends it at the end.
    """

    protocol = "fastcgi"
    settings = "max_active = 1"
    streams = False
    processes = 10

    def start(self):
        ruby = need_ruby("ruby-fcgi", "rack", "fcgi")
        script = (
            "require 'rack'; require 'fcgi'; require 'socket'; "
            "app = Rack::Builder.parse_file(ARGV[0]); app = app.first if app.is_a?(Array); "
            "listening = UNIXServer.new(ARGV[1]); $stdin.reopen(listening); "
            "puts 'fastcgi listens'; $stdout.flush; "
            "Rack::Handler::FastCGI.run(app)"
        )
        for number in range(self.processes):
            path = self.socket(f"ruby{number}")
            self.run(ruby, "-e", script, HERE / "app.ru", path, ready="^fastcgi listens")
