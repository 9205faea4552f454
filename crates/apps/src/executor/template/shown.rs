//! What is shown of templates: on the status page, and of how workers are spawned.
//!
//! Called when the state is published. What must stay true: a template whose process has ended is not shown, also
//! while what it has started is kept.

use penstock_config::Preload;
use penstock_sys::process::ProcessHandle;

use super::{State, Template};
use crate::app::{Way, WorkerView};
use crate::executor::Executor;

impl Template {
    fn view(&self) -> WorkerView {
        WorkerView {
            pid: self.process.as_ref().map(ProcessHandle::pid),
            generation: self.generation,
            state: match self.state {
                State::Starting => "booting",
                State::Ready => "template",
                State::Ending => "stopping",
            },
            since: self.began,
            restarts: 0,
            began: Some(self.began),
            ledger: None,
            memory: self.memory,
            worn: None,
            mailboxes: Vec::new(),
            address: None,
        }
    }
}

/// What is shown of them.
impl Executor {
    /// How workers are spawned now, in a word or two.
    pub(in crate::executor) fn spawn_way(&self) -> String {
        let (current, _) = self.supervisor.generations();
        match (&self.shared.way, self.templates.plain.get(&current)) {
            (Way::Servers(_), _) => String::new(),
            (Way::Workers(_), Some(why)) => format!("plain: {why}"),
            (Way::Workers(_), None) if self.config.preload == Preload::Never => {
                "plain: preload = false".to_owned()
            }
            (Way::Workers(_), None) => "forking".to_owned(),
        }
    }

    /// The templates there are.
    pub(in crate::executor) fn template_views(&self) -> Vec<WorkerView> {
        let all = self.templates.all.values();
        // One that is held has ended, or is about to: only what it has started is there.
        let shown = all.filter(|template| !template.held.is_held());
        let mut views: Vec<_> = shown.map(Template::view).collect();
        views.sort_by_key(|view| view.pid);
        views
    }
}
