# frozen_string_literal: true

# The flow over a sharp-crested rectangular weir, by the Francis formula: Q = 1.84 (b - 0.2 h)
# h^1.5, in metres and cubic metres a second. The visitor's session keeps the last results.
class FlowsController < ApplicationController
  KEPT = 5

  def index
    @flows = session[:flows] || []
  end

  def create
    width, head = params.require(%i[width head]).map { |text| Float(text) }
    raise ArgumentError, "lengths are above zero" unless width.positive? && head.positive?

    result = { "width" => width, "head" => head, "flow" => (1.84 * (width - (0.2 * head)) * (head**1.5)).round(4) }
    session[:flows] = [result, *session[:flows]].first(KEPT)
    redirect_to flows_path
  rescue ArgumentError, ActionController::ParameterMissing => e
    @mistake = e.message
    @flows = session[:flows] || []
    render :index, status: :unprocessable_entity
  end

  # For health checks: the process has loaded its code and answers.
  def up
    render plain: "up\n"
  end
end
