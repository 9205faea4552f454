//! The program that a command line runs, for people: `node`, where a process begins as `env` or as
//! a shell.
//!
//! Shown in the line of a start, on the status page and by `penstock status`.

use std::path::Path;

use penstock_config::split_command;

/// Shells that run a script after `-c`.
const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ash", "zsh"];

/// Programs within programs that are followed: `env A=b sh -c "exec env ..."`.
const MAX_DEPTH: usize = 4;

/// Names the program that a command line ends in, without its folder. A script of more than one
/// command is named by its shell.
pub(crate) fn program_name(command: &[String]) -> String {
    let mut words = command.to_vec();
    for _ in 0..MAX_DEPTH {
        let Some(inner) = inner_command(&words) else {
            break;
        };
        words = inner;
    }
    words.first().map_or("", |word| base_name(word)).to_owned()
}

/// The command that `env` or a shell runs in its place.
fn inner_command(words: &[String]) -> Option<Vec<String>> {
    let (program, rest) = words.split_first()?;
    match (base_name(program), rest) {
        ("env", rest) => {
            let start = rest.iter().position(|word| !word.contains('='))?;
            // The options of `env` are not known here.
            (!rest[start].starts_with('-')).then(|| rest[start..].to_vec())
        }
        (name, [option, script, ..]) if SHELLS.contains(&name) && option == "-c" => {
            let is_simple = !script.contains(['&', ';', '|', '(', '`', '\n']);
            let words = split_command(script).filter(|_| is_simple)?;
            let is_setting = |word: &&String| *word == "exec" || word.contains('=');
            let start = words.iter().take_while(is_setting).count();
            (start < words.len()).then(|| words[start..].to_vec())
        }
        _ => None,
    }
}

fn base_name(word: &str) -> &str {
    let name = Path::new(word).file_name();
    name.and_then(|name| name.to_str()).unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_program_behind_env_and_shells() {
        let rows: &[(&[&str], &str)] = &[
            (&["node", "server.js"], "node"),
            (&["/usr/sbin/php-fpm8.2", "-F"], "php-fpm8.2"),
            (&["./server"], "server"),
            (&["env", "PORT=3000", "node", "server.js"], "node"),
            (
                &["env", "PORT=1", "/bin/sh", "-c", "exec python3 main.py"],
                "python3",
            ),
            (&["sh", "-c", "A=1 exec ./server --x=1"], "server"),
            (&["/bin/sh", "-c", "./migrate && ./server"], "sh"),
            (&["/bin/sh", "-c", "exec 'open"], "sh"),
            (&["sh", "script.sh"], "sh"),
            (&["env", "-i", "x"], "env"),
            (&["env"], "env"),
            (&["sh", "-c", ""], "sh"),
            (&[], ""),
        ];
        for (words, expected) in rows {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            assert_eq!(program_name(&words), *expected, "{words:?}");
        }
    }
}
