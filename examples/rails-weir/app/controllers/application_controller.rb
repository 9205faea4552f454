# frozen_string_literal: true

# Forms carry a token that only this site can know.
class ApplicationController < ActionController::Base
  protect_from_forgery with: :exception
end
