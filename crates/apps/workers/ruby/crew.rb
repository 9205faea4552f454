# frozen_string_literal: true

# The threads of a worker: one for each slot, and the main thread that waits for the end. `boot` makes a `Crew`
# and calls `run`. With a single slot the main thread serves it itself. The threads of spare slots begin at
# the first request that says that it is bound by I/O, since no other makes the server use them.
#
# What must stay true: when the server goes away, the process ends, however busy it is; when the server closes
# all slots, it ends in order once the last thread has ended, or stays when it may become a template and has not
# been dismissed.
module PenstockWorker
  # All slots of a worker.
  class Crew
    PROMOTE_DEADLINE = 10

    # `control` is a UNIXSocket, `sockets` as of `Template`.
    def initialize(control, sockets, app, collects_when_idle:, stays:)
      @control = control
      @app = app
      @stays = stays
      @rack_major = Rack.release.to_i
      @multithread = sockets.slots.size + sockets.spares.size > 1
      @collector = Collector.new if collects_when_idle
      @slots = sockets.slots.map { |io| slot(io) }
      @spares = sockets.spares.map { |io| slot(io) }
      # Guards `@left` and `@spares`; the condition is told when `@left` changes.
      @lock = Mutex.new
      @changed = ConditionVariable.new
      @left = @slots.size
    end

    # Serves until every slot is closed. True when this process is to be a template now.
    def run
      if @slots.size == 1
        serve(@slots[0])
      else
        @slots.each_with_index { |slot, number| start(slot, "slot-#{number}") }
      end
      wait
    end

    private

    def slot(io)
      socket = UNIXSocket.for_fd(io.fileno)
      socket.autoclose = false
      slot = @collector ? CollectingSlot.new(socket, @collector) : Slot.new(socket)
      slot.collect = -> { GC.start } unless @collector
      slot.before_mark = method(:begin_spares)
      slot.base = RackEnv.base(@rack_major, multithread: @multithread, slot: slot)
      slot
    end

    def start(slot, name)
      Threads.start(name) { serve(slot) }
    end

    # Starts the threads of spare slots; false when the system refuses.
    def begin_spares
      return true if @spares.empty?

      @lock.synchronize do
        until @spares.empty?
          start(@spares.last, "io-#{@spares.size}")
          @spares.pop
          @left += 1
        end
      end
      true
    rescue ThreadError
      false
    end

    # Serves one slot; what the server cannot have meant ends the whole process.
    def serve(slot)
      RackApp.new(slot, @app, @rack_major).serve
      @lock.synchronize do
        @left -= 1
        @changed.broadcast
        # Wakes the main thread.
        @control.shutdown(Socket::SHUT_RD) if @left.zero? && !@stays
      end
    rescue Exception => error # rubocop:disable Lint/RescueException
      PenstockWorker.complain("#{error.full_message(highlight: false, order: :top).chomp}\n")
      exit!(1)
    end

    # Waits for the last thread, for the server to go away, or for PROMOTE.
    def wait
      while @stays || !@left.zero?
        begin
          waiting = @control.recv(1, Socket::MSG_PEEK)
        rescue SystemCallError, IOError
          waiting = nil
        end
        break if waiting.nil? || waiting.empty?
        return become_template if promoted?

        # The last thread wakes this one from now on.
        @lock.synchronize { @stays = false }
      end
      exit!(0) unless @left.zero?
      false
    end

    # Whether the frame that waits is PROMOTE; else it is DISMISS.
    def promoted?
      kind, = Wire.receive_control(@control)
      return true if kind == Wire::PROMOTE && @stays
      raise Wire::Error, "a worker was sent something else than PROMOTE or DISMISS" unless kind == Wire::DISMISS

      false
    end

    def become_template
      @lock.synchronize do
        deadline = Wire.micros + PROMOTE_DEADLINE * 1_000_000
        until @left.zero?
          left = (deadline - Wire.micros) / 1e6
          raise Wire::Error, "a worker was told to become a template while it was busy" if left <= 0

          @changed.wait(@lock, left)
        end
      end
      @collector&.allow
      true
    end
  end
end
