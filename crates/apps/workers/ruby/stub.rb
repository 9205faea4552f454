# frozen_string_literal: true

# Loads the worker out of a bundle and runs it: `ruby -e STUB -- BUNDLE_FD OPTIONS`. The bundle is a
# memory file with all scripts and the native part (see `worker_scripts.rs`), read with `pread`
# because several workers may share it. Only the core of Ruby is used here: nothing may be loaded
# before Bundler has had its say.

if (RUBY_VERSION.split(".").map(&:to_i) <=> [2, 7]).negative?
  abort "Ruby 2.7 or newer is needed, and #{RbConfig.ruby} is #{RUBY_VERSION}"
end

io = IO.for_fd(Integer(ARGV.shift))
bundle = String.new
begin
  loop { bundle << io.pread(1 << 20, bundle.bytesize) }
rescue EOFError
  io.close
end
until bundle.empty?
  file, source = Array.new(2) do
    size = bundle.slice!(0, 4).unpack1("V")
    bundle.slice!(0, size).force_encoding(Encoding::UTF_8)
  end
  if file.end_with?(".so")
    PenstockWorker::NativePart.library = source
  else
    RubyVM::InstructionSequence.compile(source, "penstock_worker/#{file}").eval
  end
end
exit PenstockWorker.main(ARGV)
