# frozen_string_literal: true

# The hooks of an application: blocks of a file that are called around boot and forks. `boot` loads
# the file (`--hooks`) before the application and calls `run` at each event; `template` calls it
# around a fork. Names are those of Penstock, Puma, Unicorn and Gunicorn, so that a `puma.rb` may be
# the file: its settings are not read.
#
# # Invariants
# - Blocks of one event run in the order of `Hooks::HOOKS`, those of one name in that of the file.
# - A block gets as many of its arguments as it takes.
# - What a hook raises before a worker is ready ends the boot; afterwards it is only written down.
module PenstockWorker
  # A worker: `pid`, nil before its fork; `age`, its number, which counts up from the first worker
  # of the application and is not used again; `index` and `nr`, the same; `log`.
  HookWorker = Struct.new(:age, :pid) do
    def index
      age
    end
    alias_method :nr, :index

    def log
      HookLog
    end
    alias_method :logger, :log
  end

  # What a hook gets for the master of Unicorn or Gunicorn: `pid` of the server, and `log`.
  HookServer = Struct.new(:pid) do
    def log
      HookLog
    end
    alias_method :logger, :log
  end

  # Writes lines to the application's output, with the methods of a Logger.
  module HookLog
    module_function

    %i[debug info warn error fatal unknown].each do |level|
      define_method(level) do |message = nil, &block|
        PenstockWorker.write_error("#{message.nil? && block ? block.call : message}\n")
        true
      end
      module_function level
    end
  end

  # The blocks of a file, by their events.
  class Hooks
    # Name, event, and the arguments. A block of Puma's that takes one gets the worker's number, one
    # of Penstock's the worker; one that takes two is written for Unicorn or Gunicorn.
    HOOKS = [
      [:on_starting, :starting, [:server]],
      [:on_boot, :boot, []],
      [:on_booted, :boot, []],
      [:after_booted, :boot, []],
      [:when_ready, :boot, [:server]],
      [:before_fork, :before_fork, [:worker]],
      [:before_worker_fork, :before_fork, [:index]],
      [:on_worker_fork, :before_fork, [:index]],
      [:pre_fork, :before_fork, %i[server worker]],
      [:after_worker_fork, :after_fork_in_template, [:index]],
      [:after_fork, :worker_start, [:worker]],
      [:post_fork, :worker_start, %i[server worker]],
      [:before_worker_boot, :worker_start, [:index]],
      [:on_worker_boot, :worker_start, [:index]],
      [:post_worker_init, :worker_start, [:worker]],
      [:before_worker_shutdown, :worker_end, [:index]],
      [:on_worker_shutdown, :worker_end, [:index]],
      [:worker_exit, :worker_end, %i[server worker]]
    ].freeze

    # Hooks of the other servers for events that do not exist here.
    NEVER_CALLED = %i[
      before_refork after_refork on_refork on_restart before_restart on_stopped after_stopped on_thread_start
      before_thread_start on_thread_exit before_thread_exit on_reload worker_int worker_abort pre_exec pre_request
      post_request child_exit nworkers_changed on_exit before_exec after_worker_exit after_worker_ready
    ].freeze

    def initialize(server_pid)
      @server = HookServer.new(server_pid)
      @blocks = {}
    end

    # Runs the file. Raises what it raises, and TypeError when it has no hook.
    def load_file(path)
      file = HookFile.new(path)
      file.instance_eval(File.read(path), path)
      file.seal
      never = NEVER_CALLED & file.blocks.keys
      PenstockWorker.write_error("#{File.basename(path)}: never called by Penstock: #{never.join(", ")}\n") if never.any?
      HOOKS.each do |name, event, arguments|
        file.blocks.fetch(name, []).each { |block| (@blocks[event] ||= []) << [block, arguments] }
      end
      return unless file.blocks.empty?

      raise TypeError, "#{path} has no hook: write a block for one of #{HOOKS.map(&:first).join(", ")}"
    end

    # Calls the blocks of an event. Raises what the first of them raises.
    def run(event, worker = nil)
      given = { server: @server, worker: worker, index: worker&.index }
      @blocks.fetch(event, []).each do |block, names|
        count = block.parameters.count { |kind, _| %i[req opt].include?(kind) }
        names = %i[server worker] if count >= 2 || block.parameters.any? { |kind, _| kind == :rest }
        block.call(*names.map { |name| given.fetch(name) }.first([count, names.size].min))
      end
    end

    # As `run`, but an exception is written down.
    def run_anyway(event, worker)
      run(event, worker)
    rescue Exception => error # rubocop:disable Lint/RescueException
      PenstockWorker.write_error("error in a hook of #{event}\n#{PenstockWorker.boot_text(error)}")
    end
  end

  # What a file of hooks is evaluated in: a method for each hook. Other words are settings in a file
  # of Puma's or Unicorn's, and mistakes in any other.
  class HookFile
    attr_reader :blocks

    (Hooks::HOOKS.map(&:first) + Hooks::NEVER_CALLED).each do |name|
      define_method(name) do |*_keys, &block|
        raise ArgumentError, "#{name} needs a block" unless block

        (@blocks[name] ||= []) << block
        nil
      end
    end

    def initialize(path)
      @blocks = {}
      @takes_settings = File.basename(path).match?(/puma|unicorn/)
    end

    # From here on an unknown word is a mistake: blocks run in this object.
    def seal
      @takes_settings = false
    end

    def respond_to_missing?(_name, _include_private = false)
      @takes_settings
    end

    def method_missing(name, *)
      super unless @takes_settings
    end
  end
end
