# frozen_string_literal: true

# Part of the stand-in: everything is in rack.rb.
