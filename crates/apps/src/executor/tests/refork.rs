//! Workers that become templates, with a real interpreter; applications as in `templates`.

use super::templates::{RunningApp, python_app_config};
use super::*;

#[test]
fn a_worker_that_has_served_enough_becomes_the_template_of_the_others() {
    on_a_loop(async {
        let dir = TempDir::new("refork");
        let mut config = python_app_config(&dir, 2);
        config.refork_after = vec![5, 1_000_000];
        let running = RunningApp::start_until_ready(config, dir).await;
        let first = running.wait_for_pids(2, &[]).await;
        let template = running.templates();
        for _ in 0..20 {
            running.get("/").await.unwrap();
        }
        until(|| running.templates() != template && running.templates().len() == 1).await;
        let renewed = running.templates();
        assert!(first.contains(&renewed[0]), "it was a worker");
        let second = running.wait_for_pids(2, &first).await;
        for _ in 0..4 {
            let answer = running.get("/").await.unwrap();
            assert!(answer.served > 5, "they know what it has done: {answer:?}");
            assert!(second.contains(&answer.pid));
        }
        until(|| !is_alive(template[0])).await;
        assert_eq!(running.imports(), 1);
        assert_eq!(running.app.metrics().crashed_workers.value(), 0);
        running.end().await;
    });
}

#[test]
fn a_worker_that_cannot_be_forked_any_more_is_no_template() {
    on_a_loop(async {
        let dir = TempDir::new("refork-not");
        let mut config = python_app_config(&dir, 1);
        config.refork_after = vec![2];
        let running = RunningApp::start_until_ready(config, dir).await;
        let first = running.wait_for_pids(1, &[]).await;
        let template = running.templates();
        for _ in 0..3 {
            running.get("/thread").await.unwrap();
        }
        let second = running.wait_for_pids(1, &first).await;
        for _ in 0..5 {
            running.get("/").await.unwrap();
        }
        assert_eq!(running.templates(), template, "the old one stays");
        let third = running.wait_for_pids(1, &[]).await;
        assert_eq!(
            (third, running.imports()),
            (second, 1),
            "and nobody tries again"
        );
        running.end().await;
    });
}

#[test]
fn what_was_started_at_the_load_serves_until_its_generation_ends() {
    on_a_loop(async {
        let dir = TempDir::new("refork-helper");
        let mut config = python_app_config(&dir, 2);
        config.refork_after = vec![5, 1_000_000];
        let helper = r#"
import subprocess
helper = subprocess.Popen(["sleep", "1000"])
with open("helpers", "a") as helpers:
    helpers.write(f"{helper.pid}\n")
"#;
        dir.put("more.py", helper);
        let running = RunningApp::start_until_ready(config, dir).await;
        let helpers = || -> Vec<u32> {
            let text = std::fs::read_to_string(running.file("helpers")).unwrap();
            text.lines().map(|line| line.parse().unwrap()).collect()
        };
        let first = running.wait_for_pids(2, &[]).await;
        let template = running.templates();
        for _ in 0..20 {
            running.get("/").await.unwrap();
        }
        until(|| running.templates() != template && running.templates().len() == 1).await;
        running.wait_for_pids(2, &first).await;
        assert!(is_alive(helpers()[0]), "its workers live");
        within(running.app.restart()).await.unwrap();
        assert_eq!(helpers().len(), 2);
        until(|| !is_alive(helpers()[0])).await;
        let last = helpers()[1];
        assert!(is_alive(last));
        running.drain_and_read_file("helpers").await;
        until(|| !is_alive(last)).await;
        running.end().await;
    });
}
