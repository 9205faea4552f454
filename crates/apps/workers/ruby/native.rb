# frozen_string_literal: true

# The native part of the worker, where the interpreter can load it: `crates/apps/workers/native`.
# `boot` loads it once, before any fork, and `rack_app` serves with it. Without it, under another
# interpreter or with `PENSTOCK_NATIVE=off`, the scripts do all of it by themselves.
#
# Ruby loads a library by its path, and takes the name of its first function from that. So the
# library is a file in memory, and a link of that name leads to it while it is loaded: in a directory
# made for that, out of the reach of other users. Where none can be made the scripts serve.
#
# # Invariants
# - A part that cannot be loaded costs speed, never the start.
# - It serves after it has had the same outcome as the scripts in this process, and not before.
module PenstockWorker
  # See above.
  module NativePart
    NAME = "penstock_native.so"
    # What it was tested with: Ruby's C API has no stable form.
    VERSIONS = %w[2.7 3.1 3.3].freeze
    FOLDERS = %w[/tmp /dev/shm /var/tmp].freeze
    # The number of memfd_create(2), which Ruby has no name for.
    MEMFD_CREATE = { "x86_64" => 319, "aarch64" => 279, "arm64" => 279, "riscv64" => 279 }[RUBY_PLATFORM[/\A\w+/]]
    MFD_CLOEXEC = 1

    # A request and its response, to compare what comes of them.
    SAMPLE_VARIABLES = [
      "POST", "/a%20b", "/a%20b?c=d", "example.com", "443", "192.0.2.1", "", "example.com", "",
      "QUERY_STRING", "c=d", "HTTP_X_LATIN", "\xE4\t".b, "HTTP_EMPTY", "", "CONTENT_LENGTH", "5",
      "HTTP_X_#{"L" * 80}", "long"
    ].join("\0".b).freeze
    SAMPLE_RESPONSE = [
      201, { "content-type" => "text/plain", "x-empty" => "", "x-tab" => "a\tb" }.freeze, ["caf\u00e9"].freeze
    ].freeze
    private_constant :NAME, :VERSIONS, :FOLDERS, :MEMFD_CREATE, :MFD_CLOEXEC, :SAMPLE_VARIABLES, :SAMPLE_RESPONSE

    @library = nil
    @is_loaded = false

    class << self
      # The library's bytes: the stub of a bundle sets them.
      attr_writer :library
      # Whether it serves.
      attr_reader :is_loaded
    end

    module_function

    # Loads it where it can be, once.
    def load
      setting = ENV.fetch("PENSTOCK_NATIVE", "")
      library = @library
      @library = nil
      return if setting == "off" || RUBY_ENGINE != "ruby" || !VERSIONS.include?(RUBY_VERSION[/\A\d+\.\d+/])
      return if compacts_by_itself?

      if library
        load_from_memory(library)
      elsif !setting.empty?
        # Tests name a file.
        load_by_link(File.expand_path(setting))
      end
      @is_loaded = works? if defined?(Native::PlainSlot)
    # Whatever this system or a library of the application makes of these calls.
    rescue StandardError, ScriptError
      nil
    end

    # Ruby 3.1 loses objects then, with native parts and without (ruby/ruby#9081): the fewer kinds of
    # code run, the better.
    def compacts_by_itself?
      GC.respond_to?(:auto_compact) && GC.auto_compact
    end

    def load_from_memory(library)
      verbose = $VERBOSE
      $VERBOSE = nil
      file = IO.for_fd(syscall(MEMFD_CREATE, +"penstock-native", MFD_CLOEXEC), "wb")
      file.write(library)
      file.flush
      load_by_link("/proc/self/fd/#{file.fileno}")
    ensure
      file&.close
      $VERBOSE = verbose
    end

    def load_by_link(path)
      with_folder do |folder|
        link = "#{folder}/#{NAME}"
        File.symlink(path, link)
        begin
          require link
        ensure
          File.unlink(link)
        end
      end
    end

    # Yields a new directory that no other user can write to, by its descriptor: another that gets
    # its path meanwhile is not used.
    def with_folder
      folder = make_folder or return
      begin
        Dir.open(folder) do |directory|
          path = "/proc/self/fd/#{directory.fileno}"
          stat = File.stat(path)
          yield path if stat.directory? && stat.owned? && stat.mode & 0o777 == 0o700
        end
      ensure
        Dir.rmdir(folder)
      end
    end

    def make_folder
      [ENV.fetch("TMPDIR", nil), *FOLDERS].compact.each do |parent|
        next unless safe?(File.stat(parent))

        folder = "#{File.absolute_path(parent)}/penstock-#{Random.urandom(8).unpack1("H*")}"
        Dir.mkdir(folder, 0o700)
        return folder
      rescue SystemCallError
        next
      end
      nil
    end

    # Whether no other user but root can rename what this one has in such a directory.
    def safe?(stat)
      [0, Process.euid].include?(stat.uid) && (stat.sticky? || (stat.mode & 0o022).zero?)
    end

    # Whether it does what the scripts do.
    def works?
      names = Wire::COMMON_NAMES
      return false unless Native.setup(nil, true, false, names, "rack.input", "rack.hijack", "rack.response_finished")

      [2, 3].all? { |rack_major| sample(rack_major, true) == sample(rack_major, false) }
    end

    # What the application sees of a request, and what the server gets.
    def sample(rack_major, is_native)
      ours, theirs = UNIXSocket.pair
      slot = Slot.new(theirs)
      slot.base = RackEnv.base(rack_major, multithread: true)
      request = Wire.frame(Wire::REQUEST, 0, [SAMPLE_VARIABLES.bytesize].pack("V") + SAMPLE_VARIABLES + "body\0")
      ours.write(request * 2)
      ours.shutdown(Socket::SHUT_WR)
      seen = []
      app = lambda do |env|
        seen << describe(env)
        SAMPLE_RESPONSE
      end
      RackApp.new(slot, app, rack_major, is_native: is_native).serve
      theirs.close
      [seen, mask_times(ours.read)]
    ensure
      ours&.close
    end

    def describe(env)
      env.map do |name, value|
        value = value.read if name == "rack.input"
        value = value.class if name == "rack.hijack"
        [name, value].map { |one| one.is_a?(String) ? [one, one.encoding, one.frozen?] : one }
      end
    end

    # The responses without the time they took.
    def mask_times(sent)
      at = 0
      while sent.bytesize - at >= 12
        sent[at + 8, 4] = "\0\0\0\0"
        at += 8 + sent.byteslice(at + 4, 4).unpack1("V")
      end
      sent
    end
  end
end
