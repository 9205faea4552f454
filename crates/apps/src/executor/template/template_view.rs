//! The view of templates on the status page, and of how workers are started.
//!
//! Called when the state is published. What must stay true: a template whose process has ended is
//! not shown, also while what it has started is kept.

use penstock_config::Preload;

use super::{Template, TemplateState};
use crate::app::WorkerSnapshot;
use crate::executor::Executor;
use crate::shared::{DispatchMode, WorkerView};

impl Template {
    fn worker_view(&self) -> WorkerView {
        WorkerView {
            snapshot: WorkerSnapshot {
                pid: self.process.as_ref().map(|process| process.handle.pid()),
                generation: self.generation,
                state: match self.state {
                    TemplateState::Starting => "booting",
                    TemplateState::Ready => "template",
                    TemplateState::Ending => "stopping",
                },
                proportional_bytes: self.memory_bytes,
                ..WorkerSnapshot::default()
            },
            state_since: self.started_at,
            started_at: Some(self.started_at),
            stats: None,
            mailboxes: Vec::new(),
            address: None,
        }
    }
}

impl Executor {
    /// How workers are spawned now, in a word or two.
    pub(in crate::executor) fn spawn_method(&self) -> String {
        let (current, _) = self.supervisor.current_and_fallback_generations();
        match (
            &self.shared.dispatch_mode,
            self.templates.unforkable.get(&current),
        ) {
            (DispatchMode::Servers(_), _) => String::new(),
            (DispatchMode::Workers(_), Some(why)) => format!("plain: {why}"),
            (DispatchMode::Workers(_), None) if self.config.preload == Preload::Never => {
                "plain: preload = false".to_owned()
            }
            (DispatchMode::Workers(_), None) => "forking".to_owned(),
        }
    }

    pub(in crate::executor) fn template_views(&self) -> Vec<WorkerView> {
        let all = self.templates.processes.values();
        // One that is held has ended, or is about to: only what it has started is there.
        let shown = all.filter(|template| !template.is_group_held());
        let mut views: Vec<_> = shown.map(Template::worker_view).collect();
        views.sort_by_key(|view| view.snapshot.pid);
        views
    }
}
