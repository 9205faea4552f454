//! `penstock completions SHELL`: completions for a shell, made from the definition of the command
//! line.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Arguments;

/// Returns the script that the shell reads.
pub(super) fn run(shell: Shell) -> Result<String, String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "penstock", &mut script);
    String::from_utf8(script).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_is_told_every_verb() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = run(shell).unwrap();
            for verb in Arguments::command().get_subcommands() {
                let name = verb.get_name();
                assert!(script.contains(name), "{shell}: {name}");
            }
            assert!(script.contains("listen-https"), "{shell}");
        }
    }
}
