# frozen_string_literal: true

# The native part against the scripts: the same frames must give the same bytes, calls and logs. The
# other tests run on either, by `PENSTOCK_NATIVE`; this one starts a process of each.

require "minitest/autorun"
require "minitest/mock"
require "fileutils"
require "json"
require "open3"
require "timeout"
require "tmpdir"
require_relative "harness"
require_relative "slot_helper"

class NativeTest < Minitest::Test
  include SlotHelper

  Wire = PenstockWorker::Wire
  SETTING = ENV.fetch("PENSTOCK_NATIVE", "off")
  SERVER = File.expand_path("native_server.rb", __dir__)
  CASES = 300
  STRESSED_CASES = 5
  DEADLINE = 240

  PATHS = (File.read(SERVER).scan(%r{^    when "(/[a-z0-9_]+)"}).flatten - ["/body_liar"]).freeze
  # Bytes that mean something somewhere in a frame.
  BYTES = [0, 1, 2, 3, 4, 8, 10, 16, 32, 48, 127, 128, 255].freeze

  def setup
    skip "PENSTOCK_NATIVE names no native part" if SETTING == "off"
  end

  def test_it_is_loaded_here
    lines = outcomes(SETTING, [])
    assert_equal [], lines
  end

  def test_frames_have_the_same_outcome_in_both
    seed = Integer(ENV.fetch("PENSTOCK_FUZZ_SEED", "1"))
    lines = right_cases + cases(seed, CASES)
    scripts = outcomes("off", lines)
    compare(lines, scripts, outcomes(SETTING, lines), seed)
    # The cases reach what they are for.
    ends = scripts.map { |outcome| outcome["end"] }
    assert_empty %w[closed PenstockWorker::Wire::Error] - ends
    assert_operator scripts.map { |outcome| outcome["sent"] }.uniq.size, :>, CASES / 4
    seen = scripts.flat_map { |outcome| outcome["seen"].map(&:first) }.uniq
    assert_empty PATHS - seen, "paths that no case has asked for"
  end

  def test_so_they_have_when_each_allocation_collects_garbage
    seed = Integer(ENV.fetch("PENSTOCK_FUZZ_SEED", "1")) + 1_000_000
    lines = cases(seed, STRESSED_CASES) << right_cases.grep(/#{hex("/collect")}/)[0]
    compare(lines, outcomes("off", lines), outcomes(SETTING, lines, "PENSTOCK_STRESS" => "1"), seed)
  end

  def test_memory_does_not_grow
    requests = Integer(ENV.fetch("PENSTOCK_LEAK_REQUESTS", "20000"))
    paths = ["/", "/raise", "/two", "/latin", "/large"]
    lines = [JSON.generate("frames" => paths.map { |path| hex(request(path)) }.join, "repeat" => requests / paths.size)]
    scripts, native = ["off", SETTING].map { |setting| outcomes(setting, lines)[0]["growth"] }
    # Pages of 4 KiB: Ruby's own heap still settles. 256 bytes a request would be 625 pages.
    assert_operator native, :<, [scripts, 0].max + 600
  end

  def test_the_scripts_serve_where_ruby_compacts_by_itself
    skip "This Ruby does not" unless GC.respond_to?(:auto_compact=)
    source = <<~'RUBY'
      GC.auto_compact = true
      run ->(_env) { [200, {}, [PenstockWorker::NativePart.is_loaded.inspect]] }
    RUBY
    worker = Harness::Worker.new(source).ready
    assert_equal "false", worker.ask(Harness.request).body
  ensure
    worker&.stop
  end

  def test_a_relative_directory_for_temporary_files_is_used
    Dir.mktmpdir do |directory|
      Dir.mkdir("#{directory}/relative")
      source = "require #{File.expand_path("../worker", __dir__).dump}\n" \
               "PenstockWorker::NativePart.load\np PenstockWorker::NativePart.is_loaded"
      env = { "PENSTOCK_NATIVE" => File.expand_path(SETTING), "TMPDIR" => "relative" }
      out, = Open3.capture2(env, RbConfig.ruby, "-rsocket", "-rstringio", "-e", source, chdir: directory)
      assert_equal "true\n", out
      assert_empty Dir.children("#{directory}/relative")
    end
  end

  def test_a_directory_in_which_others_may_rename_is_not_used
    Dir.mktmpdir do |parent|
      uses = { 0o700 => true, 0o755 => true, 0o770 => false, 0o702 => false, 0o1777 => true }
      assert_equal uses, uses.to_h { |mode, _| [mode, File.chmod(mode, parent) && makes_folder_in?(parent)] }
      if Process.euid.zero?
        File.chown(12_345, nil, parent)
        refute makes_folder_in?(parent), "one that another owns"
        File.chown(0, nil, parent)
      end
    end
  end

  def test_a_directory_that_another_has_put_in_its_place_is_not_used
    used = [[0o700, nil], [0o750, nil], [0o700, 12_345]].map do |mode, owner|
      folder = Dir.mktmpdir
      File.chmod(mode, folder)
      File.chown(owner, nil, folder) if owner && Process.euid.zero?
      is_used = false
      PenstockWorker::NativePart.stub(:make_folder, folder) do
        PenstockWorker::NativePart.with_folder { is_used = true }
      end
      refute Dir.exist?(folder)
      is_used
    end
    assert_equal [true, false, !Process.euid.zero?], used
  end

  # A thread of an earlier request that asks whether its client has gone.
  def test_a_late_look_for_a_cancel_takes_no_request
    with_slot do |ours, slot|
      thread = serving(slot) { |env| [200, {}, [env["PATH_INFO"]]] }
      ours.write(request("/first"))
      assert_equal "/first", answer(ours)
      wait_until_it_sleeps(thread)
      refute slot.cancelled?
      paths = %w[/one /two /three]
      ours.write(paths.map { |path| request(path) }.join)
      assert_equal(paths, paths.map { answer(ours) })
      thread.kill.join
    end
  end

  # The scripts believe it, and send a frame that the server refuses.
  def test_a_string_that_lies_about_its_size_is_read_to_its_end_and_no_further
    outcome = outcomes(SETTING, [JSON.generate("frames" => hex(request("/body_liar")))])[0]
    assert [outcome["sent"]].pack("H*").end_with?("x\0tab\thereliar")
  end

  # Interrupts of a thread that waits for a request: none of these may lose what comes afterwards.
  def test_what_ends_a_thread_ends_one_that_waits
    with_slot do |ours, slot|
      thread = serving(slot) { [200, {}, ["x"]] }
      ours.write(request("/"))
      assert_equal "x", answer(ours)
      wait_until_it_sleeps(thread)
      thread.kill
      assert thread.join(Harness::DEADLINE)
    end
    with_slot do |ours, slot|
      thread = serving(slot) { [200, {}, ["x"]] }
      wait_until_it_sleeps(thread)
      thread.raise(KeyError, "meant for it")
      assert_raises(KeyError) { thread.join(Harness::DEADLINE) }
      # The slot goes on where it was.
      thread = serving(slot) { [200, {}, ["y"]] }
      ours.write(request("/"))
      assert_equal "y", answer(ours)
      thread.kill.join
    end
  end

  # The application's time runs out while it answers: the frame is sent as it was begun.
  def test_an_interrupt_within_the_application_is_its_own
    with_slot do |ours, slot|
      thread = serving(slot) do |env|
        Timeout.timeout(0.001) { sleep } if env["PATH_INFO"] == "/late"
        [200, {}, ["in time"]]
      end
      _, log = capture_io do
        ours.write(request("/late") + request("/"))
        assert_equal Wire::FAILED, frame(ours)[0]
        assert_equal "in time", answer(ours)
      end
      assert_match(/Timeout::Error/, log)
      thread.kill.join
    end
  end

  def test_a_body_that_is_replaced_while_the_socket_is_full_stays
    with_slot do |ours, slot|
      body = "A" * 60_000
      page = [body]
      thread = serving(slot) { [200, {}, page] }
      fill(ours, slot)
      ours.write(request("/"))
      wait_until_it_sleeps(thread) { slot.instance_variable_get(:@ended_seq).zero? }
      page[0] = "B" * 60_000
      body.replace("C" * 60_000)
      GC.start
      ours.close_write
      sent = read_to_the_end(ours, slot, thread)
      assert_equal "A" * 60_000, sent[-60_000..]
    end
  end

  private

  def makes_folder_in?(parent)
    before = ENV.fetch("TMPDIR", nil)
    ENV["TMPDIR"] = parent
    folder = PenstockWorker::NativePart.make_folder
    Dir.rmdir(folder)
    File.dirname(folder) == parent
  ensure
    ENV["TMPDIR"] = before
  end

  def hex(data)
    data.unpack1("H*")
  end

  # Each path once with each version of Rack, and a usual request behind it.
  def right_cases
    PATHS.product([2, 3]).map do |path, rack|
      JSON.generate("frames" => hex(request(path, { "HTTP_A" => "b" }, body: "body") + request("/")), "rack" => rack)
    end
  end

  # Sequences of frames: right ones, ones with a changed byte, cut ones.
  def cases(seed, count)
    chance = Random.new(seed)
    paths = PATHS.cycle
    Array.new(count) do
      in_pieces = chance.rand < 0.3
      frames = Array.new(chance.rand(1..5)) { random_frame(chance, paths, in_pieces) }.join
      if chance.rand < 0.4
        chance.rand(1..3).times do
          # Most of a frame is text: its edges matter more.
          edge = [chance.rand < 0.6 ? 20 : frames.bytesize, frames.bytesize].min
          frames.setbyte(chance.rand(edge), BYTES.sample(random: chance))
        end
      end
      frames = frames.byteslice(0, chance.rand(frames.bytesize)) if chance.rand < 0.15
      pieces = in_pieces ? Array.new(chance.rand(1..6)) { chance.rand(1..4000) } : []
      JSON.generate("frames" => hex(frames), "pieces" => pieces, "rack" => chance.rand(2..3))
    end
  end

  # What depends on when it comes is not sent in pieces.
  def random_frame(chance, paths, in_pieces)
    kind = chance.rand
    return Harness.cancel(chance.rand(4)) if kind < 0.03 && !in_pieces
    return Wire.frame(Wire::COLLECT_GARBAGE, 0, "") if kind < 0.05
    return Wire.frame(Wire::INPUT, chance.rand(3), "piece") if kind < 0.07

    more = Array.new(chance.rand(0..6)) do |number|
      size = [0, 1, 20, 255, 256, 2000].sample(random: chance)
      name = ["HTTP_A", "HTTP_B", "HTTP_\xE9".b, "rack.input", "", "HTTP_#{"X" * 70}#{number}"].sample(random: chance)
      [name, Array.new(size) { "ab\t\xE9 ".b[chance.rand(5)] }.join]
    end
    flags = [0, 0, 0, 0, 0, 0, 0, in_pieces ? 0 : 1, 2].sample(random: chance)
    # Usual ones among the others: they are what this is for.
    path = chance.rand < 0.4 ? "/" : paths.next
    request(path, more.to_h, body: chance.bytes([0, 0, 3, 5000].sample(random: chance)), flags: flags)
  end

  def outcomes(setting, lines, more = {})
    out, err, status = Timeout.timeout(DEADLINE) do
      Open3.capture3({ "PENSTOCK_NATIVE" => setting, **more }, RbConfig.ruby, SERVER, stdin_data: lines.join("\n"))
    end
    raise "#{status.inspect}: #{err}" unless status.success?

    out.lines.map { |line| JSON.parse(line) }
  end

  def compare(lines, scripts, native, seed)
    assert_equal lines.size, scripts.size
    assert_equal lines.size, native.size
    lines.each_with_index do |line, at|
      next if scripts[at] == native[at]

      differing = scripts[at].keys.reject { |key| scripts[at][key] == native[at][key] }
      shown = differing.map { |key| "#{key}: #{scripts[at][key].to_s[0, 1500]}\n#{native[at][key].to_s[0, 1500]}" }
      flunk "seed #{seed}, case #{at}: #{line[0, 600]}\n#{shown.join("\n")}"
    end
  end
end
