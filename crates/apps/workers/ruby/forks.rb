# frozen_string_literal: true

# Forks of this process: those that become workers, and those of the application. `template` calls
# `fork_worker` and, in the new worker, `die_with_server`. `boot` guards the worker's descriptors: a
# process that the application forks has them closed, and `exit_if_forked_by_app` ends it when it
# returns into the worker's code, so that it cannot answer for its parent.
#
# # Invariants
# - A worker is no child of its template, and ends with its server in whatever way that ends.
# - The intermediate process runs nothing of the application but its fork hooks.
module PenstockWorker
  # See above.
  module Forks
    PARENT_TIMEOUT = 5
    PR_SET_PDEATHSIG = 1
    # The number of prctl(2), which Ruby has no name for.
    PRCTL = { "x86_64" => 157, "aarch64" => 167, "arm64" => 167, "riscv64" => 167 }[RUBY_PLATFORM[/\A[^-]+/]]
    # Before Ruby 3.1 there is no hook at forks: then the process id tells.
    HAS_HOOK = Process.respond_to?(:_fork)
    # Handles SIGINT.
    IGNORE_SIGNAL = proc {}
    private_constant :PARENT_TIMEOUT, :PR_SET_PDEATHSIG, :PRCTL, :IGNORE_SIGNAL

    @guarded = []
    @own_fork = @forked_by_app = false
    @pid = Process.pid
    @intermediate_pid = 0

    # Comes before `Process._fork`.
    module ForkHook
      def _fork
        pid = super
        Forks.after_fork if pid.zero?
        pid
      end
    end

    module_function

    # Closes these (IO objects that own their descriptors) in every process that the application
    # forks.
    def close_on_fork(*ios)
      Process.singleton_class.prepend(ForkHook) if HAS_HOOK
      @guarded.concat(ios)
    end

    # Has this process ignore SIGINT: stopping is up to the server. By a handler, because a program
    # that the application starts would inherit an ignored signal, and could not be interrupted; a
    # process that it forks gets Ruby's own handler back.
    def ignore_interrupts
      trap("INT", IGNORE_SIGNAL)
    end

    # Closes all guarded descriptors but `kept`: a new worker needs none of its template, and a new
    # template none that it served on.
    def close_guarded(kept = nil)
      @guarded.each { |io| io.close unless io.equal?(kept) }
      @guarded = kept ? [kept] : []
    end

    # Ends this process if the application has forked it; `error` is what it came back with.
    def exit_if_forked_by_app(error = nil)
      return unless @forked_by_app || (!HAS_HOOK && Process.pid != @pid)

      status = error.is_a?(SystemExit) ? error.status : 1
      begin
        unless error.is_a?(SystemExit)
          $stderr.write("#{error.full_message(highlight: false, order: :top).chomp}\n") if error
          $stderr.write("process #{Process.pid}, forked by the application, came back from it and was ended\n")
        end
        $stdout.flush
        $stderr.flush
      rescue SystemCallError, IOError, NoMethodError
        nil # The application has closed them.
      end
      exit!(status)
    end

    # Forks twice: true in the new worker, false here. Yields the error of a kernel that refuses,
    # here or in the intermediate process.
    def fork_worker
      open_streams
      @own_fork = true
      middle = fork
      return fork_from_intermediate { |error| yield error } unless middle # rubocop:disable Style/ExplicitBlockArgument

      begin
        Process.wait(middle)
      rescue Errno::ECHILD
        nil # The application has said that it wants to hear of no child.
      end
      false
    # Whatever a hook of the application raises is reported to the server.
    rescue StandardError, NotImplementedError => error
      yield error
      false
    ensure
      @own_fork = false
    end

    # Waits until `server` is the parent of this new worker, and sees to it that the worker ends
    # when that does. A worker whose server has gone ends here.
    def die_with_server(server)
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PARENT_TIMEOUT
      while Process.ppid == @intermediate_pid && Process.clock_gettime(Process::CLOCK_MONOTONIC) < deadline
        sleep(0.0002)
      end
      exit!(1) if Process.ppid != server
      watch_parent(server) unless set_parent_death_signal
      # It may have gone in between.
      exit!(1) if Process.ppid != server
    end

    # Ruby flushes them at a fork, and cannot when the application has closed them.
    def open_streams
      $stdout = File.open(File::NULL, "w") if $stdout.respond_to?(:closed?) && $stdout.closed?
      $stderr = File.open(File::NULL, "w") if $stderr.respond_to?(:closed?) && $stderr.closed?
    end

    def after_fork
      return if @own_fork

      @forked_by_app = true
      Native.after_fork if NativePart.is_loaded
      restore_interrupts
      close_guarded
    end

    # Unless the application has a handler of its own by now.
    def restore_interrupts
      handler = trap("INT", "DEFAULT")
      trap("INT", handler) unless handler.equal?(IGNORE_SIGNAL)
    end

    # In the intermediate process, which never returns.
    def fork_from_intermediate
      @intermediate_pid = Process.pid
      begin
        child = fork
      rescue Exception => error # rubocop:disable Lint/RescueException
        begin
          yield error
        ensure
          exit!(1)
        end
      end
      exit!(0) if child
      @pid = Process.pid
      true
    end

    def set_parent_death_signal
      return false unless PRCTL

      verbose = $VERBOSE
      $VERBOSE = nil
      syscall(PRCTL, PR_SET_PDEATHSIG, Signal.list["KILL"], 0, 0, 0).zero?
    rescue SystemCallError, NotImplementedError, NoMethodError
      false
    ensure
      $VERBOSE = verbose
    end

    def watch_parent(server)
      Threads.start("parent") do
        sleep(0.5) while Process.ppid == server
        exit!(1)
      end
    end
  end
end
