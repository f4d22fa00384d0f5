//! What the compiler says of `#[retryable]` and of guards where they are used wrongly: something helpful. (Of what is right it says
//! nothing: `retryable_forms.rs` compiles.)
//!
//! Each program in `ui/fail` is given to the compiler with the library that these tests use, and nothing is built for it. What is
//! compared are the messages and where they point to, not the pictures of the code around it: those change with the library and the compiler.
//!
//! `REDRIVE_TEST_WRITE=1 cargo test --test ui` writes down what it says now; read it before you believe it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[test]
fn what_is_wrong_is_explained() {
    let (library, out) = (library(), tempfile::tempdir().unwrap());
    let programs = files("tests/ui/fail").filter(|path| path.extension() == Some(OsStr::new("rs")));
    let mut checked = 0;
    for program in programs {
        let said = said_of(&program, &library, out.path());
        let expected = program.with_extension("stderr");
        if std::env::var_os("REDRIVE_TEST_WRITE").is_some() {
            std::fs::write(&expected, &said).unwrap();
        }
        assert_eq!(said, std::fs::read_to_string(&expected).unwrap(), "{}", program.display());
        checked += 1;
    }
    assert!(checked > 5, "there are only {checked} programs");
}

/// The library that these tests were linked with: the last that was built before them.
fn library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let is_it = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with("libredrive-") && name.ends_with(".rlib")
    };
    let built = |path: &PathBuf| path.metadata().unwrap().modified().unwrap();
    let libraries = files(tests.parent().unwrap()).filter(is_it).filter(|path| built(path) <= built(&tests));
    libraries.max_by_key(built).expect("the library is beside its tests")
}

fn files(folder: impl AsRef<Path>) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())
}

/// What the compiler says of a program that it must not take.
fn said_of(program: &Path, library: &Path, out: &Path) -> String {
    let compiled = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--edition", "2024", "--emit", "metadata", "--error-format", "json", "--verbose", "--out-dir"])
        .arg(out)
        .arg("-L")
        .arg(library.parent().unwrap())
        .arg("--extern")
        .arg(format!("redrive={}", library.display()))
        .arg(program)
        .output()
        .unwrap();
    assert!(!compiled.status.success(), "{} was taken", program.display());
    let messages = String::from_utf8(compiled.stderr).unwrap();
    let is_artifact = |message: &Value| message["artifact"].is_string();
    let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    messages.lines().map(read).filter(|message| !is_artifact(message)).map(|message| told(&message)).collect()
}

/// A message and the notes below it, each on a line after where it points to; nothing of those that only count the others.
fn told(message: &Value) -> String {
    let spans = message["spans"].as_array().unwrap();
    if spans.is_empty() {
        return String::new();
    }
    let primary = spans.iter().find(|span| span["is_primary"] == true).unwrap();
    let mut text = format!("{}:{} {}\n", primary["line_start"], primary["column_start"], line(message));
    if let Some(label) = primary["label"].as_str() {
        text += &format!("    {label}\n");
    }
    let notes = message["children"].as_array().unwrap();
    notes.iter().for_each(|note| text += &format!("    {}\n", line(note)));
    text
}

/// What is below its first line lists types of other crates.
fn line(message: &Value) -> String {
    let text = message["message"].as_str().unwrap();
    format!("{}: {}", message["level"].as_str().unwrap(), text.lines().next().unwrap_or_default())
}
