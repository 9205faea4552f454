# frozen_string_literal: true

# Starts a process: reads its options, loads the application, and serves or forks. `main` is called
# by the stub that the server puts on the command line, or by `worker.rb`. It sends HELLO on the
# control socket, loads the application, sends READY or the error, and serves: with `slot_threads`,
# with a reactor, or as a `template`.
#
# # Invariants
# - When the server ends, in whatever way, this process ends.
# - No child of the application inherits a socket of the worker's.
# - No library is loaded before Bundler has chosen its version. So the control socket is a plain IO,
#   and JSON is written by hand.
module PenstockWorker
  module_function

  # Runs a process to its end; returns the exit code.
  def main(arguments)
    Threads.record_interpreter_threads
    options = Options.parse(arguments)
    ARGV.clear
    Forks.ignore_interrupts
    trap("TERM", "SYSTEM_DEFAULT")
    $stdout.sync = $stderr.sync = true
    ThreadStacks.install
    streams = Template.standard_streams
    control = Wire.adopt_fd(options.control_fd)
    sockets = adopt_sockets(options)
    Forks.close_on_fork(control, *sockets.all)
    send_hello(control)
    hooks = Hooks.new(options.server_pid)
    app = boot(control, options, hooks) or return 1
    serve_or_fork(control, sockets, app, options, streams, hooks) ? 0 : 1
  end

  def adopt_sockets(options)
    slots, spares = [options.slot_fds, options.spare_slot_fds].map { |fds| fds.map { |fd| Wire.adopt_fd(fd) } }
    channel, files = [options.channel_fd, options.files_fd].map { |fd| fd && Wire.adopt_fd(fd) }
    Sockets.new(slots, spares, channel, files)
  end

  # Serves, or forks workers: a forked worker continues here, and a worker may become a template.
  # False when a hook failed before the worker was ready.
  def serve_or_fork(control, sockets, app, options, streams, hooks)
    worker = HookWorker.new(options.worker_number, Process.pid)
    promoted = false
    loop do
      if options.template || promoted
        Forks.close_guarded(control)
        compact_heap
        send_ready_to_fork(control, options)
        options.template = true
        control, sockets, worker, hook_error = *Template.serve(control, options.server_pid, streams, hooks)
        ThreadStacks.install
      end
      return false unless run_start_hooks(control, hooks, worker, hook_error)

      promoted = serve_worker(control, sockets, app, options)
      next if promoted

      hooks.run_anyway(:worker_end, worker)
      return true
    end
  end

  # Runs the hooks of a new worker; false when one of them failed, here or before the fork.
  def run_start_hooks(control, hooks, worker, hook_error)
    raise hook_error if hook_error

    hooks.run(:worker_start, worker)
    Forks.exit_if_forked_by_app
    true
  rescue Exception => error # rubocop:disable Lint/RescueException
    Forks.exit_if_forked_by_app(error)
    report_boot_failure(control, error)
    false
  end

  # Serves until the server closes the sockets. True when this process becomes a template.
  def serve_worker(control, sockets, app, options)
    # Its template has warmed up.
    warm_up unless options.template
    if options.reactor
      send_ready(control, options)
      Fibers.serve(sockets.channel.fileno, sockets.files.fileno, app, options)
      return false
    end

    socket = UNIXSocket.for_fd(control.fileno)
    socket.autoclose = false
    slot_threads = SlotThreads.new(
      socket, sockets, app,
      gc_when_idle: options.gc_when_idle, may_become_template: options.template || options.may_become_template
    )
    send_ready(control, options)
    slot_threads.run
  end

  def send_hello(control)
    control.syswrite(Wire.frame(Wire::HELLO, 0, [Wire::PROTOCOL_VERSION].pack("V")))
  end

  def send_ready_to_fork(control, options)
    prevents_fork = Threads.prevents_fork(options.ignore_threads)
    left = prevents_fork ? nil : Threads.left_behind
    send_ready(control, options, { "prevents_fork" => prevents_fork, "leaves_threads" => left }.compact)
  end

  def send_ready(control, options, more = {})
    control.syswrite(Wire.frame(Wire::READY, 0, ready_json(options, more)))
  end

  # Loads the application, or reports why it does not load.
  def boot(control, options, hooks)
    app = load_app(options.dir, options.entry) do
      hooks.load_file(options.hooks) if options.hooks
      hooks.run(:starting)
    end
    Fibers.prepare if options.reactor
    hooks.run(:boot)
    Forks.exit_if_forked_by_app
    NativePart.load unless options.reactor
    app
  # Also SystemExit: a file that exits while it is loaded has not booted.
  rescue Exception => error # rubocop:disable Lint/RescueException
    Forks.exit_if_forked_by_app(error)
    report_boot_failure(control, error)
    nil
  end

  def report_boot_failure(control, error)
    text = boot_text(error)
    control.syswrite(Wire.frame(Wire::BOOT_FAILED, 0, text.byteslice(0, 1 << 20).scrub("?")))
  end

  # Writes to standard error, which the application may have closed.
  def write_error(text)
    $stderr.write(text)
  rescue SystemCallError, IOError
    nil
  end

  # The error as Ruby would print it, without the lines that are not the application's.
  def boot_text(error)
    lines = (error.backtrace || []).reject { |line| worker_frame?(line) }
    error.set_backtrace(lines)
    text = lines.empty? ? "#{error.message} (#{error.class})" : error.full_message(highlight: false, order: :top)
    "#{text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace).chomp}\n"
  end

  # Loads the application; yields before, when its libraries can be loaded.
  def load_app(dir, entry)
    Dir.chdir(dir)
    require "bundler/setup" if bundle?
    require_rack
    require "socket"
    require "stringio"
    yield
    app = entry.end_with?(".ru") ? rackup(entry) : Entry.load_app(entry)
    raise TypeError, "#{entry} gives #{app.class}, not a Rack application" unless app.respond_to?(:call)

    app
  end

  # `gems.rb` is Bundler's other name for a Gemfile; alone it may be anything.
  def bundle?
    ENV["BUNDLE_GEMFILE"] || File.file?("Gemfile") || (File.file?("gems.rb") && File.file?("gems.locked"))
  end

  def rackup(entry)
    app = Rack::Builder.parse_file(File.expand_path(entry))
    app.is_a?(Array) ? app.first : app
  end

  def require_rack
    require "rack"
  rescue LoadError => error
    raise unless error.path == "rack"

    raise LoadError, "rack is not installed for #{RbConfig.ruby}, or not in this application's Gemfile", cause: nil
  end

  # All that is loaded now lives for ever: let the collector settle before the first request. Rack
  # 2's Lint parses URIs without loading the library for it; every other server has it loaded.
  def warm_up
    require "uri"
    Process.respond_to?(:warmup) ? Process.warmup : GC.start
  end

  # So does what workers are going to share. Before `Process.warmup`: three collections make every
  # object old, so that none writes its age into the shared pages later, and compaction gathers the
  # holes, so that new objects do not go into pages that could be shared (Sinatra: 5 % less memory
  # for each worker).
  def compact_heap
    warm_up
    return if Process.respond_to?(:warmup)

    2.times { GC.start }
    GC.compact if GC.respond_to?(:compact)
  rescue NotImplementedError
    nil # This build of Ruby cannot compact.
  end

  def worker_frame?(line)
    line.start_with?("penstock_worker/", "#{__dir__}/", "-e:") ||
      line.match?(%r{/(?:rack/builder\.rb|rubygems/core_ext/[a-z_]+\.rb)})
  end

  # JSON by hand: its library belongs to the application.
  def ready_json(options, more)
    engine = RUBY_ENGINE == "ruby" ? "CRuby" : RUBY_ENGINE
    pairs = [%("interpreter": "#{engine} #{RUBY_VERSION}"), %("interface": "#{options.interface} #{Rack.release}")]
    more.each do |key, value|
      text = value.encode("UTF-8", invalid: :replace, undef: :replace)
      pairs << %("#{key}": "#{text.gsub(/["\\\x00-\x1f]/) { |char| format("\\u%04x", char.ord) }}")
    end
    %({"pid": #{Process.pid}, #{pairs.join(", ")}})
  end
end
