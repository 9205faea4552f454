//! Compiles the native parts of the workers: `workers/native/python.c` with `asgi_*.c`, and
//! `workers/native/ruby.c`, shared libraries that go into the binary with the scripts.
//!
//! They need no headers of Python or Ruby, and link nothing: every symbol is one of the interpreter
//! that loads them or of the C library of that interpreter. One file serves all of them, whatever
//! the C library of the server is. (On processors of 32 bits the interpreter refuses the one for
//! Python, as a division is missing, and the scripts serve.)

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const FOLDER: &str = "workers/native";
const PYTHON_SOURCES: [&str; 7] = [
    "python.c",
    "asgi_call.c",
    "asgi_channel.c",
    "asgi_http.c",
    "asgi_method.c",
    "asgi_scope.c",
    "asgi_types.c",
];
const RUBY_SOURCES: [&str; 1] = ["ruby.c"];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=workers/native");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let libraries = [
        (&PYTHON_SOURCES[..], "python.so"),
        (&RUBY_SOURCES[..], "ruby.so"),
    ];
    for (sources, library) in libraries {
        if let Err(problem) = compile(sources, &out.join(library)) {
            println!("cargo::error={FOLDER}: {library}: {problem}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

#[expect(clippy::disallowed_methods, reason = "a build has no loop to block")]
fn compile(sources: &[&str], library: &Path) -> Result<(), String> {
    // With the flags of the target, such as the prefix for paths where packages are built.
    let mut build = cc::Build::new();
    build
        .files(sources.iter().map(|name| format!("{FOLDER}/{name}")))
        .opt_level(2)
        .debug(false)
        .pic(true)
        .flag("-fvisibility=hidden")
        .flag("-Wno-missing-field-initializers")
        .warnings(true)
        .extra_warnings(true);
    let objects = build
        .try_compile_intermediates()
        .map_err(|error| error.to_string())?;
    // Apart, as some compilers have no headers of a C library that is not linked. A symbol that the
    // interpreter lacks is found when it loads the library (`now`), and not at the first call.
    let mut command = build.get_compiler().to_command();
    command
        .args(["-shared", "-nostdlib", "-Wl,-s", "-Wl,-z,now"])
        .args(objects)
        .arg("-o")
        .arg(library);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}: a C compiler is needed")),
    }
}
