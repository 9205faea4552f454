# frozen_string_literal: true

# The stack of every thread, on SIGQUIT: the server sends it before it ends a stuck worker. `boot`
# installs it, again in every forked worker, which has another standard error. A library that keeps
# Ruby's lock delays the stacks; only a native extension could avoid that.
module PenstockWorker
  # See above.
  module ThreadStacks
    @hooks = []

    class << self
      # Called after the threads have been shown; each returns text. A reactor adds one that shows
      # its tasks.
      attr_reader :hooks
    end

    module_function

    # Writes the stacks to the present standard error, on every SIGQUIT from now on. Through a
    # descriptor of our own (the application may close its standard error), and without IO#write,
    # whose lock may not be taken by a signal's handler.
    def install
      before = @io
      @io = IO.for_fd(Wire.duplicate_fd(IO.for_fd(2, autoclose: false)))
      trap("QUIT") { write_stacks }
      before&.close
    rescue SystemCallError
      nil # It was started with its standard error closed.
    end

    def write_stacks
      text = +"stack of every thread (pid #{Process.pid})\n"
      Thread.list.each do |thread|
        text << "#{thread.inspect}\n"
        (thread.backtrace || []).each { |line| text << "    #{line}\n" }
      end
      hooks.each { |hook| text << hook.call.to_s }
      @io.syswrite(text)
    rescue StandardError
      nil
    end
  end
end
