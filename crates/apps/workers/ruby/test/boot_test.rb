# frozen_string_literal: true

# Starts real workers: how they load applications, report that, and end.

require "minitest/autorun"
require_relative "harness"

class BootTest < Minitest::Test
  Wire = PenstockWorker::Wire

  HELLO = <<~'RUBY'
    run ->(env) { [200, {}, [[Thread.current == Thread.main, Dir.pwd, env["rack.multithread"]].inspect]] }
  RUBY

  BLOCKING = <<~'RUBY'
    arrived = Queue.new
    gate = Queue.new
    run lambda { |_env|
      arrived << true
      gate << true << true if arrived.size == 2
      gate.pop
      [200, {}, ["together"]]
    }
  RUBY

  def start(source, **options)
    worker = Harness::Worker.new(source, **options)
    yield worker
  ensure
    worker&.stop
  end

  def test_the_application_runs_in_its_folder_on_the_main_thread
    start(HELLO) do |worker|
      body = worker.ready.ask(Harness.request).body
      assert_includes body, "[true, #{File.realpath(worker.dir).inspect}"
    end
  end

  def test_ready_describes_the_process
    start(HELLO) do |worker|
      described = worker.ready.description
      assert_equal worker.pid, described["pid"]
      assert_equal "CRuby #{RUBY_VERSION}", described["interpreter"]
      assert_match(/\Arack \d/, described["interface"])
    end
  end

  def test_a_failed_boot_shows_the_applications_error
    {
      "require 'missing_library'\n" => "cannot load such file -- missing_library",
      "run ->(env) {\n" => "syntax error",
      "1 / 0\n" => "config.ru:1:in `/': divided by 0 (ZeroDivisionError)",
      "exit 4\n" => "SystemExit",
      "x = 1\n" => "missing run"
    }.each do |source, error|
      start(source) do |worker|
        frame = worker.control.frame
        text = frame.payload.force_encoding(Encoding::UTF_8)
        assert_equal Wire::BOOT_FAILED, frame.kind
        assert_includes text, error
        refute_includes text, "boot.rb"
        assert_equal 1, worker.wait.exitstatus
      end
    end
  end

  CODE_FILES = {
    ["app.rb", "require 'sinatra'\nget('/') { __FILE__[/app.rb/] }\n"] => "app.rb",
    ["app.rb", "require 'sinatra'\nclass Web < Sinatra::Base\n  get('/') { 'modular' }\nend\n"] => "modular",
    ["shop_web.rb", "class ShopWeb\n  def self.call(_) = [200, {}, ['by name']]\nend\nOther = ->(_) {}\n"] => "by name",
    ["x.rb", "module Shop\n  class Web\n    def self.call(_) = [200, {}, ['nested']]\n  end\nend\n"] => "nested",
    ["x.rb", "class A\n  def self.call(_) = [200, {}, [name]]\nend\nclass B < A\nend\n"] => "B",
    ["x.rb:A", "A = ->(_) { [200, {}, ['named']] }\nB = ->(_) {}\n"] => "named",
    ["x.rb:Shop::App", "module Shop\n  App = ->(_) { [200, {}, ['below']] }\nend\n"] => "below"
  }.freeze

  def test_a_code_file_has_its_application
    CODE_FILES.each do |(entry, source), body|
      start(source, entry: entry) do |worker|
        assert_equal body, worker.ready.ask(Harness.request).body, source
      end
    end
  end

  def test_a_file_of_a_framework_gives_the_whole_application
    whole = "def self.call(_) = [200, {}, ['whole']]"
    {
      ["app.rb", "Cuba.define do\nend\n"] => "class Cuba\n  def self.define = nil\n  #{whole}\nend\n",
      ["config/environment.rb", "X = ->(_) {}\n"] => "class Rails\n  #{whole}\n  def self.application = self\nend\n",
      ["config/app.rb", "class App\nend\n"] =>
        "class Hanami\n  #{whole}\n  def self.boot = nil\n  def self.app = self\nend\n"
    }.each do |(entry, source), library|
      source = "require File.expand_path('library', Dir.pwd)\n#{source}"
      start(source, entry: entry, files: { "library.rb" => library }) do |worker|
        assert_equal "whole", worker.ready.ask(Harness.request).body, source
      end
    end
  end

  def test_a_code_file_without_one_application_is_refused
    {
      ["x.rb", "A = ->(_) {}\nB = ->(_) {}\n"] => "x.rb has several applications (A, B): say which, as in x.rb:A",
      ["x.rb", "X = 1\n"] => "x.rb has no Rack application: name it",
      ["x.rb:X", "X = 1\n"] => "x.rb:X gives Integer, not a Rack application",
      ["x.rb:Y", "X = 1\n"] => "x.rb defines no Y"
    }.each do |(entry, source), error|
      start(source, entry: entry) do |worker|
        frame = worker.control.frame
        assert_equal Wire::BOOT_FAILED, frame.kind
        assert_includes frame.payload.force_encoding(Encoding::UTF_8), error
      end
    end
  end

  def test_a_gemfile_decides_and_its_absence_of_rack_is_said
    [{ "Gemfile" => "" }, { "gems.rb" => "", "gems.locked" => "" }].each do |files|
      start(HELLO, files: files, env: {}) do |worker|
        frame = worker.control.frame
        assert_equal Wire::BOOT_FAILED, frame.kind
        assert_includes frame.payload, "rack is not installed for"
      end
    end
    start(HELLO, files: { "gems.rb" => "raise" }) { |worker| assert worker.ready }
  end

  def test_a_closed_slot_ends_the_process_in_order
    [1, 3].each do |slots|
      start("at_exit { $stderr.puts 'bye' }\n#{HELLO}", slots: slots) do |worker|
        worker.ready
        worker.slots.each { |slot| slot.socket.close_write }
        assert_equal 0, worker.wait.exitstatus
        assert_equal "bye\n", worker.log
      end
    end
  end

  def test_a_closed_control_socket_ends_a_process_that_is_busy
    start(BLOCKING, slots: 2) do |worker|
      worker.ready.slots[0].send(Harness.request)
      worker.control.socket.close
      assert_equal 0, worker.wait.exitstatus
    end
  end

  def test_a_server_that_goes_away_ends_a_stream_and_its_body_is_closed
    source = <<~'RUBY'
      body = Object.new
      def body.each
        loop { yield "tick" }
      end
      def body.close
        $stderr.puts "closed"
      end
      run ->(_env) { [200, {}, body] }
    RUBY
    start(source) do |worker|
      worker.ready.slots[0].send(Harness.request)
      assert_equal Wire::HEAD, worker.slots[0].frame.kind
      worker.slots[0].socket.close
      assert_equal 0, worker.wait.exitstatus
      assert_equal "closed\n", worker.log
    end
  end

  def test_threads_serve_their_slots_side_by_side
    start(BLOCKING, slots: 2) do |worker|
      worker.ready.slots.each { |slot| slot.send(Harness.request) }
      assert_equal %w[together together], worker.slots.map { |slot| slot.reply.body }
    end
  end

  def test_signals_are_the_servers_business
    start(HELLO) do |worker|
      worker.ready
      Process.kill("INT", worker.pid)
      assert_equal "200", worker.ask(Harness.request).status
      Process.kill("TERM", worker.pid)
      assert_equal Signal.list["TERM"], worker.wait.termsig
    end
  end

  def test_nonsense_on_a_slot_ends_the_process
    [1, 2].each do |slots|
      start(HELLO, slots: slots) do |worker|
        worker.ready.slots[0].socket.write("GET / HTTP/1.1\r\n\r\n")
        assert_equal 1, worker.wait.exitstatus
      end
    end
  end

  def test_children_of_the_application_inherit_no_socket
    source = <<~'RUBY'
      READER, WRITER = IO.pipe
      child = spawn("cat", in: READER, close_others: false)
      at_exit { Process.kill("KILL", child) }
      run ->(_env) { [200, {}, [child.to_s]] }
    RUBY
    start(source) do |worker|
      pid = worker.ready.ask(Harness.request).body
      links = Dir["/proc/#{pid}/fd/*"].map { |link| File.readlink(link) }
      refute_empty links
      assert_empty links.grep(/\Asocket:/)
    end
  end

  def test_the_stub_runs_the_scripts_from_a_bundle
    start_bundle("run ->(env) { [5, {}, []] }") do |worker|
      assert_equal Wire::FLAG_PROTOCOL_ERROR, worker.ready.ask(Harness.request).flags
      assert_match(%r{^penstock_worker/response\.rb:\d+:in}, worker.log)
    end
  end

  def test_the_native_part_of_a_bundle_leaves_nothing_and_is_not_needed
    native = ENV.fetch("PENSTOCK_NATIVE", "off")
    skip "PENSTOCK_NATIVE names no native part" if native == "off"

    source = <<~'RUBY'
      links = -> { Dir["#{ENV.fetch("TMPDIR")}/*"].size }
      run ->(_env) { [200, {}, ["#{PenstockWorker::NativePart.is_loaded.inspect} #{links.call}"]] }
    RUBY
    library = File.binread(native)
    # The second lacks a function of Ruby's.
    unfit = [library.sub("ELF", "ELL"), library.sub("rb_hash_dup\0", "rb_hash_dux\0")]
    cases = [[library, "", "true 0"], [library, "off", "false 0"], *unfit.map { |one| [one, "", "false 0"] }]
    cases.each do |content, setting, expected|
      Dir.mktmpdir do |folder|
        env = { "PENSTOCK_NATIVE" => setting, "TMPDIR" => folder }
        start_bundle(source, "penstock_native.so" => content, env: env) do |worker|
          assert_equal expected, worker.ready.ask(Harness.request).body
          assert_empty worker.log
        end
      end
    end
  end

  private

  # A worker of the scripts as the server packs them.
  def start_bundle(source, env: {}, **more, &block)
    names = File.read("#{Harness::ROOT}/../../src/worker_scripts.rs")[/"ruby\/",(.*?)\)/m, 1].scan(/"([^"]+)"/).flatten
    parts = names.map { |name| [name, File.binread("#{Harness::ROOT}/#{name}")] } + more.to_a
    file = Tempfile.new("bundle", binmode: true)
    parts.flatten.each { |part| file.write([part.bytesize].pack("V"), part) }
    file.flush
    command = [RbConfig.ruby, "-e", File.read("#{Harness::ROOT}/stub.rb"), "--", file.fileno.to_s]
    start(source, command: command, fds: [file.fileno], env: env, &block)
  end
end
