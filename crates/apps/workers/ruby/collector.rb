# frozen_string_literal: true

# Garbage collection between requests instead of within them (`--collect-when-idle`). `crew` makes one for the
# process. The server says COLLECT when a worker has nothing to do. When it does not for a long time, Ruby
# collects by itself again until it does: memory has a bound in any case. Since Ruby 3.4 only the full
# collections wait, the short ones for young objects go on.
module PenstockWorker
  # Switches the automatic collection off, and on again when it must be.
  class Collector
    REQUESTS_MAX = 10_000
    # How often the memory is looked at, in requests.
    LOOK_EVERY = 16

    def initialize
      @young_only = GC.respond_to?(:config) && GC.config.key?(:rgengc_allow_full_mark)
      collect
    end

    # A full collection, now.
    def collect
      GC.start
      @young_only ? GC.config(rgengc_allow_full_mark: false) : GC.disable
      @off = true
      @requests = 0
      @limit = 2 * resident_pages
    end

    # Called for each request, by any thread.
    def count_request
      @requests += 1
      return unless @off && (@requests % LOOK_EVERY).zero?

      allow if @requests >= REQUESTS_MAX || resident_pages > @limit
    end

    # Lets Ruby collect by itself again.
    def allow
      @off = false
      @young_only ? GC.config(rgengc_allow_full_mark: true) : GC.enable
    end

    private

    def resident_pages
      File.read("/proc/self/statm").split[1].to_i
    rescue SystemCallError
      1 << 62
    end
  end

  # A slot whose requests are counted.
  class CollectingSlot < Slot
    def initialize(socket, collector)
      super(socket)
      @collector = collector
      @collect = collector.method(:collect)
    end

    def receive
      @collector.count_request
      super
    end
  end
end
