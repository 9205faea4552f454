//! Gives `--version` what only a build knows: the commit, the target and the allocator.
//!
//! # Invariants
//! - A build needs neither git nor a repository: `PENSTOCK_COMMIT` names the commit, else git is
//!   asked, else the commit is unknown.
//! - Debug builds do not ask git, so that a commit rebuilds nothing.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PENSTOCK_COMMIT");
    let named = std::env::var("PENSTOCK_COMMIT").ok();
    let commit = named.filter(|commit| !commit.is_empty());
    let commit = commit.or_else(commit_of_repository);
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=PENSTOCK_COMMIT={commit}");
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=PENSTOCK_TARGET={target}");
    let libc = std::env::var("CARGO_CFG_TARGET_ENV").unwrap_or_default();
    let allocator = if libc == "musl" { "mimalloc" } else { "system" };
    println!("cargo::rustc-env=PENSTOCK_ALLOCATOR={allocator}");
}

fn commit_of_repository() -> Option<String> {
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        return None;
    }
    // A line for each change of HEAD, whether it names a branch or not.
    println!(
        "cargo::rerun-if-changed={}",
        git(&["rev-parse", "--git-path", "logs/HEAD"])?
    );
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// The output of a git command; `None` without git or a repository.
#[expect(
    clippy::disallowed_methods,
    reason = "a build script has no event loop"
)]
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
