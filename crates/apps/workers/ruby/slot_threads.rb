# frozen_string_literal: true

# The threads of a worker: one for each slot, and the main thread that waits for the end. `boot`
# makes a `SlotThreads` and calls `run`. With a single slot the main thread serves it itself. The
# threads of spare slots begin at the first I/O-bound request, since only those make the server use
# them.
#
# # Invariants
# - When the server ends, the process ends, however busy it is.
# - When the server closes all slots, the process ends in order once the last thread has ended, or
#   becomes a template if it may and has not been dismissed.
module PenstockWorker
  # All slots of a worker.
  class SlotThreads
    PROMOTE_TIMEOUT = 10

    # `control` is a UNIXSocket, `sockets` as of `Template`.
    def initialize(control, sockets, app, gc_when_idle:, may_become_template:)
      @control = control
      @app = app
      @may_become_template = may_become_template
      @rack_major = Rack.release.to_i
      @is_multithread = sockets.slots.size + sockets.spares.size > 1
      @idle_gc = IdleGc.new if gc_when_idle
      @slots = sockets.slots.map { |io| build_slot(io) }
      @spare_slots = sockets.spares.map { |io| build_slot(io) }
      # Guards `@active_threads` and `@spare_slots`; the condition is signalled when
      # `@active_threads` changes.
      @lock = Mutex.new
      @threads_changed = ConditionVariable.new
      @active_threads = @slots.size
    end

    # Serves until every slot is closed. True when this process becomes a template.
    def run
      if @slots.size == 1
        serve(@slots[0])
      else
        @slots.each_with_index { |slot, number| start_thread(slot, "slot-#{number}") }
      end
      wait_for_control
    end

    private

    def build_slot(io)
      socket = UNIXSocket.for_fd(io.fileno)
      socket.autoclose = false
      slot = @idle_gc ? GcCountingSlot.new(socket, @idle_gc) : Slot.new(socket)
      slot.collect = -> { GC.start } unless @idle_gc
      slot.before_io_bound = method(:start_spare_threads)
      slot.base = RackEnv.base(@rack_major, multithread: @is_multithread, slot: slot)
      slot
    end

    def start_thread(slot, name)
      Threads.start(name) { serve(slot) }
    end

    # Starts the threads of spare slots; false when the system refuses.
    def start_spare_threads
      return true if @spare_slots.empty?

      @lock.synchronize do
        until @spare_slots.empty?
          start_thread(@spare_slots.last, "io-#{@spare_slots.size}")
          @spare_slots.pop
          @active_threads += 1
        end
      end
      true
    rescue ThreadError
      false
    end

    # Serves one slot; a frame that the server cannot have meant ends the whole process.
    def serve(slot)
      RackApp.new(slot, @app, @rack_major).serve
      @lock.synchronize do
        @active_threads -= 1
        @threads_changed.broadcast
        # Wakes the main thread.
        @control.shutdown(Socket::SHUT_RD) if @active_threads.zero? && !@may_become_template
      end
    rescue Exception => error # rubocop:disable Lint/RescueException
      PenstockWorker.write_error("#{error.full_message(highlight: false, order: :top).chomp}\n")
      exit!(1)
    end

    # Waits for the last thread, for the server's end, or for PROMOTE.
    def wait_for_control
      while @may_become_template || !@active_threads.zero?
        begin
          waiting = @control.recv(1, Socket::MSG_PEEK)
        rescue SystemCallError, IOError
          waiting = nil
        end
        break if waiting.nil? || waiting.empty?
        return become_template if receive_promotion

        # The last thread wakes this one from now on.
        @lock.synchronize { @may_become_template = false }
      end
      exit!(0) unless @active_threads.zero?
      false
    end

    # Whether the waiting frame is PROMOTE; otherwise it is DISMISS.
    def receive_promotion
      kind, = Wire.receive_control(@control)
      return true if kind == Wire::PROMOTE && @may_become_template
      raise Wire::Error, "a worker was sent something else than PROMOTE or DISMISS" unless kind == Wire::DISMISS

      false
    end

    def become_template
      @lock.synchronize do
        deadline = Wire.micros + PROMOTE_TIMEOUT * 1_000_000
        until @active_threads.zero?
          left = (deadline - Wire.micros) / 1e6
          raise Wire::Error, "a worker was told to become a template while it was busy" if left <= 0

          @threads_changed.wait(@lock, left)
        end
      end
      @idle_gc&.enable_gc
      true
    end
  end
end
