//! Notices that the settings' file has changed, by looking at it now and then.
//!
//! It is read at every look: a few kilobytes cost less than being wrong about a file that was replaced, or swapped behind
//! a symbolic link as Kubernetes does, or changed twice within the grain of its timestamp. A change counts when two looks in
//! a row see the same: an editor may be half way through writing, and half a file may be valid.

use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};

use super::Settings;
use super::sources::{Sources, environment};

/// Watches a file of settings.
///
/// ```
/// use redrive::Watcher;
///
/// let dir = tempfile::tempdir().unwrap();
/// let file = dir.path().join("redrive.toml");
/// std::fs::write(&file, "[defaults]\nmax_attempts = 5").unwrap();
/// let (mut watcher, first) = Watcher::open(&file)?;
/// assert_eq!(first.to_defaults().policy.max_attempts, Some(5));
///
/// std::fs::write(&file, "[defaults]\nmax_attempts = 6").unwrap();
/// assert!(watcher.changed().is_none() && watcher.is_settling()); // it may be half written
/// let changed = watcher.changed().unwrap()?;
/// assert_eq!(changed.to_defaults().policy.max_attempts, Some(6));
/// assert!(watcher.changed().is_none()); // told once
/// # Ok::<(), redrive::Error>(())
/// ```
pub struct Watcher {
    path: PathBuf,
    env: Vec<(String, String)>,
    /// What was told last.
    told: u64,
    /// What the last look saw, if that was something else.
    seen: Option<u64>,
}

impl Watcher {
    /// Reads the file, and the environment as it is now, and watches the file from then on.
    pub fn open(path: impl Into<PathBuf>) -> Result<(Self, Settings)> {
        let mut watcher = Self { path: path.into(), env: environment()?, told: 0, seen: None };
        let text = read(&watcher.path);
        watcher.told = mark(&text);
        let settings = watcher.settings(text)?;
        Ok((watcher, settings))
    }

    /// Looks. `None`: nothing is new, or it is not certain yet. Else the settings, or what is wrong with them: each told once.
    pub fn changed(&mut self) -> Option<Result<Settings>> {
        let text = read(&self.path);
        let now = mark(&text);
        if now == self.told {
            self.seen = None;
            return None;
        }
        if self.seen.replace(now) != Some(now) {
            return None;
        }
        (self.told, self.seen) = (now, None);
        Some(self.settings(text))
    }

    /// Whether the last look saw something new that the next one is to confirm.
    pub fn is_settling(&self) -> bool {
        self.seen.is_some()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn settings(&self, text: Result<String>) -> Result<Settings> {
        Sources::new(&self.path.display().to_string(), &text?, self.env.iter().cloned()).settings()
    }
}

/// Only the path: variables may hold a password.
impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").field("path", &self.path).finish_non_exhaustive()
    }
}

pub(super) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .map_err(|e| Error::invalid(path.display().to_string(), format!("cannot be read: {e}")))
}

fn mark(text: &Result<String>) -> u64 {
    match text {
        Ok(text) => xxh3_64(text.as_bytes()),
        Err(e) => xxh3_64(e.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(told: Option<Result<Settings>>) -> Option<u32> {
        told?.unwrap().to_defaults().policy.max_attempts
    }

    fn write(path: &Path, attempts: u32) {
        std::fs::write(path, format!("[defaults]\nmax_attempts = {attempts}")).unwrap();
    }

    #[test]
    fn a_file_that_was_replaced_or_swapped_behind_a_link_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name| dir.path().join(name);
        write(&at("one"), 1);
        write(&at("two"), 2);
        std::os::unix::fs::symlink(at("one"), at("redrive.toml")).unwrap();
        let (mut watcher, first) = Watcher::open(at("redrive.toml")).unwrap();
        assert_eq!(attempts(Some(Ok(first))), Some(1));
        std::os::unix::fs::symlink(at("two"), at("new")).unwrap();
        std::fs::rename(at("new"), at("redrive.toml")).unwrap();
        assert_eq!([attempts(watcher.changed()), attempts(watcher.changed())], [None, Some(2)]);
        write(&at("new"), 3);
        std::fs::rename(at("new"), at("redrive.toml")).unwrap();
        assert_eq!([attempts(watcher.changed()), attempts(watcher.changed())], [None, Some(3)]);
    }

    #[test]
    fn half_a_file_is_not_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("redrive.toml");
        write(&file, 5);
        let (mut watcher, _) = Watcher::open(&file).unwrap();
        std::fs::write(&file, "").unwrap(); // valid, and all defaults
        assert!(watcher.changed().is_none() && watcher.is_settling());
        write(&file, 6);
        assert!(watcher.changed().is_none() && watcher.is_settling());
        assert_eq!(attempts(watcher.changed()), Some(6));
        assert!(watcher.changed().is_none() && !watcher.is_settling());
    }

    #[test]
    fn what_is_wrong_is_told_once_and_so_is_that_it_is_good_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("redrive.toml");
        write(&file, 5);
        let (mut watcher, _) = Watcher::open(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(watcher.changed().is_none());
        let said = watcher.changed().unwrap().unwrap_err().to_string();
        assert!(said.contains("cannot be read"), "{said}");
        assert!(watcher.changed().is_none() && watcher.changed().is_none());
        write(&file, 0);
        assert!(watcher.changed().is_none());
        let said = watcher.changed().unwrap().unwrap_err().to_string();
        assert!(said.contains("max_attempts") && said.contains("redrive.toml, line 2"), "{said}");
        write(&file, 5);
        assert_eq!([attempts(watcher.changed()), attempts(watcher.changed())], [None, Some(5)]);
    }
}
