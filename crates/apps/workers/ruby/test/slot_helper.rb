# frozen_string_literal: true

# A slot in the process of a test: a thread that serves it, and what is sent and received.

require "timeout"
require_relative "harness"

module SlotHelper
  Wire = PenstockWorker::Wire

  def request(path, more = {}, body: "", flags: 0)
    values = ["GET", path, path, "example.com", "80", "127.0.0.1", "40000", "example.com", ""]
    encoded = (values + more.to_a.flatten).map(&:b).join("\0")
    Wire.frame(Wire::REQUEST, flags, [encoded.bytesize].pack("V") + encoded + body.b)
  end

  def with_slot
    PenstockWorker::NativePart.load unless PenstockWorker::NativePart.is_loaded
    assert_equal ENV.fetch("PENSTOCK_NATIVE", "off") != "off", PenstockWorker::NativePart.is_loaded
    ours, theirs = Harness.pair
    slot = PenstockWorker::Slot.new(theirs)
    slot.base = PenstockWorker::RackEnv.base(2, multithread: true, slot: slot)
    yield ours, slot
  ensure
    ours&.close
    theirs.close if theirs && !theirs.closed?
  end

  def serving(slot, &app)
    thread = Thread.new { PenstockWorker::RackApp.new(slot, app, 2).serve }
    thread.report_on_exception = false
    thread
  end

  def wait_until
    Timeout.timeout(Harness::DEADLINE) { Thread.pass until yield }
  end

  def wait_until_it_sleeps(thread)
    wait_until { (!block_given? || yield) && thread.status == "sleep" }
  end

  # Leaves room for some bytes only in what `slot` sends to, or for none. Gives how many there are.
  def fill(ours, slot, has_room: true)
    socket = slot.instance_variable_get(:@socket)
    socket.setsockopt(:SOCKET, :SNDBUF, 4096)
    filled = 0
    while (sent = socket.write_nonblock("\1" * 4000, exception: false)).is_a?(Integer)
      filled += sent
    end
    filled -= ours.readpartial([filled, 4000].min).bytesize if has_room
    filled
  end

  def frame(ours)
    kind, flags, count, length = exactly(ours, 8).unpack("CCvV")
    [kind, flags, count, exactly(ours, length)]
  end

  def answer(ours)
    kind, _, _, payload = frame(ours)
    raise "frame #{kind}: #{payload}" unless kind == Wire::HEAD

    payload.byteslice(8 + payload.unpack("VV")[1]..)
  end

  def exactly(ours, size)
    data = +""
    Timeout.timeout(Harness::DEADLINE) { data << ours.readpartial(size - data.bytesize) while data.bytesize < size }
    data
  end

  # What comes until the thread has ended.
  def read_to_the_end(ours, slot, thread)
    reader = Thread.new { ours.read }
    assert thread.join(Harness::DEADLINE)
    slot.instance_variable_get(:@socket).close
    reader.value
  end
end
