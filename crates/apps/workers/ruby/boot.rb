# frozen_string_literal: true

# Starts a worker process: options, application, threads, and how it ends. `main` is called by the stub
# that the server puts on the command line, or by `worker.rb`. It says HELLO on the control socket, loads
# the application, says READY or sends the error, and serves.
#
# What must stay true: when the server goes away, however it goes, this process ends; no child of the
# application inherits a socket of ours; no library is loaded before Bundler has chosen its version,
# which is why the control socket is a plain IO and JSON is written by hand.
module PenstockWorker
  Options = Struct.new(:control_fd, :slot_fds, :app, :dir, :entry)

  module_function

  # Runs a worker to its end; returns the exit code.
  def main(arguments)
    options = parse(arguments)
    ARGV.clear
    trap("INT", "IGNORE")
    trap("TERM", "SYSTEM_DEFAULT")
    $stdout.sync = $stderr.sync = true
    ([options.control_fd] + options.slot_fds).each { |fd| keep_from_children(fd) }
    control = IO.for_fd(options.control_fd, "r+b", autoclose: false)
    control.syswrite(Wire.frame(Wire::HELLO, 0, [Wire::VERSION].pack("V")))
    app = boot(control, options) or return 1
    warm_up
    control.syswrite(Wire.frame(Wire::READY, 0, description))
    run(control, options.slot_fds, app)
    0
  end

  # Loads the application, or reports why it does not load.
  def boot(control, options)
    load_app(options.dir, options.entry)
  # Also SystemExit: a file that exits while it is loaded has not booted.
  rescue Exception => error # rubocop:disable Lint/RescueException
    text = boot_text(error)
    complain(text)
    control.syswrite(Wire.frame(Wire::BOOT_FAILED, 0, text.byteslice(0, 1 << 20).scrub("?")))
    nil
  end

  # Writes to standard error, which the application may have closed.
  def complain(text)
    $stderr.write(text)
  rescue SystemCallError, IOError
    nil
  end

  # The error as Ruby would print it, without the lines that are not the application's.
  def boot_text(error)
    lines = (error.backtrace || []).reject { |line| ours?(line) }
    error.set_backtrace(lines)
    text = lines.empty? ? "#{error.message} (#{error.class})" : error.full_message(highlight: false, order: :top)
    "#{text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace).chomp}\n"
  end

  def load_app(dir, entry)
    Dir.chdir(dir)
    require "bundler/setup" if ENV["BUNDLE_GEMFILE"] || File.file?("Gemfile")
    require_rack
    require "socket"
    require "stringio"
    app = Rack::Builder.parse_file(File.expand_path(entry))
    app = app.first if app.is_a?(Array)
    raise TypeError, "#{entry} gives #{app.class}, not a Rack application" unless app.respond_to?(:call)

    app
  end

  def require_rack
    require "rack"
  rescue LoadError => error
    raise unless error.path == "rack"

    raise LoadError, "rack is not installed for #{RbConfig.ruby}, or not in this application's Gemfile", cause: nil
  end

  # What is loaded now lives for ever: let the collector settle before the first request. Rack 2's
  # Lint parses URIs without loading the library for it; every other server has it loaded.
  def warm_up
    require "uri"
    Process.respond_to?(:warmup) ? Process.warmup : GC.start
  end

  def run(control, slot_fds, app)
    base = RackEnv.base(rack_major, multithread: slot_fds.size > 1)
    return serve(slot_fds[0], app, base) if slot_fds.size == 1

    threads = slot_fds.each_with_index.map do |fd, number|
      Thread.new { serve(fd, app, base) }.tap { |thread| thread.name = "slot-#{number}" }
    end
    Thread.new { wait_for_end(control) }
    threads.each(&:join)
  end

  # The server never writes here: the end of the file means that it has gone.
  def wait_for_end(control)
    begin
      control.read(1)
    rescue SystemCallError, IOError
      nil
    end
    exit!(0)
  end

  # Serves one slot; what the server cannot have meant ends the whole process.
  def serve(slot_fd, app, base)
    socket = UNIXSocket.for_fd(slot_fd)
    RackApp.new(Slot.new(socket, base), app, rack_major).serve
  rescue Exception => error # rubocop:disable Lint/RescueException
    complain("#{error.full_message(highlight: false, order: :top).chomp}\n")
    exit!(1)
  end

  def rack_major
    Rack.release.to_i
  end

  def keep_from_children(fd)
    IO.for_fd(fd, autoclose: false).close_on_exec = true
  end

  def ours?(line)
    line.start_with?("penstock_worker/", "#{__dir__}/", "-e:") ||
      line.match?(%r{/(?:rack/builder\.rb|rubygems/core_ext/[a-z_]+\.rb)})
  end

  def description
    engine = RUBY_ENGINE == "ruby" ? "CRuby" : RUBY_ENGINE
    %({"pid": #{Process.pid}, "interpreter": "#{engine} #{RUBY_VERSION}", "interface": "rack #{Rack.release}"})
  end

  def parse(arguments)
    given = arguments.each_slice(2).to_h
    Options.new(
      Integer(given.fetch("--control-fd")),
      given.fetch("--slot-fds").split(",").map { |fd| Integer(fd) },
      given.fetch("--app", "app"),
      given.fetch("--dir", "."),
      given.fetch("--entry")
    )
  rescue KeyError, ArgumentError => error
    abort "usage: worker.rb --control-fd N --slot-fds A,B --entry config.ru [--app NAME] [--dir DIR] (#{error.message})"
  end
end
