# frozen_string_literal: true

# The threads of this process, and whether it may be forked beside them. A fork takes the thread
# that calls it and no other. `boot` asks before a template sends READY, and counts the
# interpreter's own threads at the very start.
#
# Threads of Ruby do not prevent a fork: Ruby releases the locks of the other threads, every Rails
# application has some, and libraries start theirs again. The log names them, but for those that
# declare themselves `fork_safe` (a thread variable, as Puma has it). Threads of native libraries do
# prevent it: nothing releases their locks.
#
# # Invariants
# - A thread that Ruby does not know is found, also among those that Ruby keeps for later.
module PenstockWorker
  # See above.
  module Threads
    SETTLE_TIMEOUT = 0.2
    MAX_NAMES = 8
    # The most threads that Ruby is expected to keep for later use.
    MAX_CACHED_THREADS = 256
    private_constant :SETTLE_TIMEOUT, :MAX_NAMES, :MAX_CACHED_THREADS

    @interpreter_threads = 0

    module_function

    # Counts the interpreter's threads, before anything of the application runs. From Ruby 3.3 on it
    # has a timer, which may also come later.
    def record_interpreter_threads
      timers = (RUBY_VERSION <=> "3.3").negative? ? 0 : 1
      @interpreter_threads = [tasks - Thread.list.size, timers].max
    end

    # Begins a thread of the worker: it is done before a fork, or begun again after it.
    def start(name, &block)
      thread = Thread.new(&block)
      thread.name = name
      thread.thread_variable_set(:fork_safe, true)
      thread
    end

    # Why nothing may be forked from this process now, if so: the application's reason, or native
    # threads, unless `anyway`.
    def prevents_fork(anyway)
      return PenstockWorker.fork_prevented_reason if PenstockWorker.fork_prevented_reason || anyway

      native = settled_native_threads
      native.positive? ? "#{native} native threads run" : nil
    end

    # The names of the threads of Ruby that a fork leaves behind; nil when there are none.
    def left_behind
      left = other_threads.reject { |thread| thread.thread_variable_get(:fork_safe) }
      return if left.empty?

      names = left.first(MAX_NAMES).map { |thread| name_of(thread) }.join(", ")
      left.size > MAX_NAMES ? "#{names} and #{left.size - MAX_NAMES} more" : names
    end

    # Its name, or where it was begun.
    def name_of(thread)
      text = thread.inspect
      thread.name || text[%r{[^/ ]+\.\w+:\d+}] || text
    end

    def other_threads
      Thread.list - [Thread.main]
    end

    # A thread that has just ended is counted for a moment.
    def settled_native_threads
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + SETTLE_TIMEOUT
      loop do
        native = native_threads
        return native if native <= 0 || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline

        sleep(0.005)
      end
    end

    # How many threads are not Ruby's. Up to Ruby 3.2 an ended thread is kept for a minute, for the
    # next: those to which a new thread does not add are such.
    def native_threads
      return 0 unless unknown_tasks.positive?

      kept = []
      until kept.size == MAX_CACHED_THREADS
        before = tasks
        kept << Thread.new { Thread.stop }
        Thread.pass until kept.last.stop?
        break if tasks > before || !unknown_tasks.positive?
      end
      unknown_tasks
    rescue ThreadError
      unknown_tasks
    ensure
      kept&.each { |thread| thread.kill.join }
    end

    def unknown_tasks
      tasks - Thread.list.size - @interpreter_threads
    end

    def tasks
      Dir.children("/proc/self/task").size
    rescue SystemCallError
      Thread.list.size + @interpreter_threads
    end
  end
end
