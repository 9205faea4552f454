# frozen_string_literal: true

# What an application may say to its server, beside answering requests. `PenstockWorker.prevent_fork(reason)`
# while the code loads, or `env["penstock.prevent_fork"]` in a request: no process is to be forked from this
# one. `mark_as_io_bound` and `extend_timeout` belong to a request, and so to its slot (`wire`).
module PenstockWorker
  # Stands for what belongs to a slot where there is none: in a reactor.
  UNSUPPORTED_IN_REACTOR = ->(*) { false }

  module_function

  # Says that nothing may be forked from this process, for example because it holds a connection that two
  # processes cannot share. The first reason stays.
  def prevent_fork(reason = nil)
    text = reason.to_s[0, 200]
    @prevent_reason ||= text.empty? ? "the application said prevent_fork" : text
    nil
  end

  # Why nothing may be forked, if so.
  def fork_prevented_reason
    @prevent_reason
  end
end
