# frozen_string_literal: true

# The page of the room.
class PagesController < ApplicationController
  def index; end
end
