# frozen_string_literal: true

# The functions that an application may call beside answering requests.
# `PenstockWorker.prevent_fork(reason)` while the code loads, or `env["penstock.prevent_fork"]` in a
# request: no process may be forked from this one. `mark_as_io_bound` and `extend_timeout` belong to
# a request, and so to its slot (`wire`).
module PenstockWorker
  # Stands for the functions of a slot in a reactor, which has none.
  UNSUPPORTED_IN_REACTOR = ->(*) { false }

  module_function

  # Prevents forks of this process, for example because it holds a connection that two processes
  # cannot share. The first reason stays.
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
