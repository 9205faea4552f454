# frozen_string_literal: true

# Garbage collection between requests instead of within them (`--gc-when-idle`). `slot_threads`
# makes one for the process. The server sends COLLECT_GARBAGE when a worker is idle. If it does not
# for a long time, Ruby collects by itself again until it does: memory has a bound in any case.
# Since Ruby 3.4 only full collections wait; the short ones for young objects continue.
module PenstockWorker
  # Disables automatic collection, and enables it again when it must.
  class IdleGc
    MAX_REQUESTS = 10_000
    # How often the memory is checked, in requests.
    MEMORY_CHECK_REQUESTS = 16

    def initialize
      @minor_gc_continues = GC.respond_to?(:config) && GC.config.key?(:rgengc_allow_full_mark)
      collect
    end

    # A full collection, now.
    def collect
      GC.start
      @minor_gc_continues ? GC.config(rgengc_allow_full_mark: false) : GC.disable
      @is_gc_off = true
      @requests = 0
      @limit = 2 * resident_pages
    end

    # Called for each request, by any thread.
    def count_request
      @requests += 1
      return unless @is_gc_off && (@requests % MEMORY_CHECK_REQUESTS).zero?

      enable_gc if @requests >= MAX_REQUESTS || resident_pages > @limit
    end

    # Lets Ruby collect by itself again.
    def enable_gc
      @is_gc_off = false
      @minor_gc_continues ? GC.config(rgengc_allow_full_mark: true) : GC.enable
    end

    private

    def resident_pages
      File.read("/proc/self/statm").split[1].to_i
    rescue SystemCallError
      1 << 62
    end
  end

  # A slot whose requests are counted.
  class GcCountingSlot < Slot
    def initialize(socket, idle_gc)
      super(socket)
      @idle_gc = idle_gc
      @collect = idle_gc.method(:collect)
    end

    def receive
      @idle_gc.count_request
      super
    end

    def count_request
      @idle_gc.count_request
    end
  end
end
