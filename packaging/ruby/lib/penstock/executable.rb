# frozen_string_literal: true

# The binary of this gem.
module Penstock
  # The path of the binary.
  def self.executable
    File.expand_path("../../libexec/penstock", __dir__)
  end
end
