//! Database servers that a test may kill or demote.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::harness::Kind;

/// A server of one's own, which is stopped and removed with this.
pub struct Server {
    kind: Kind,
    dir: tempfile::TempDir,
}

impl Server {
    pub fn start_new(kind: Kind) -> Self {
        let server = Self { kind, dir: tempfile::tempdir().unwrap() };
        // The server runs as a user of its own, who must be able to pass through.
        std::fs::set_permissions(server.dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        server.start();
        server
    }

    /// The name that `scripts/db` has for the server: of the MySQL dialect, the one that the other tests run on.
    fn store(&self) -> String {
        let variable = "REDRIVE_TEST_MYSQL_SERVER";
        match self.kind {
            Kind::Postgres => "postgres".into(),
            _ => std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: use scripts/db env")),
        }
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("db")
    }

    /// Also on the same data and port after a kill.
    pub fn start(&self) {
        self.script("start").unwrap_or_else(|said| panic!("scripts/db start: {said}"));
    }

    /// What `scripts/db` prints; if it fails, what it complains of.
    fn script(&self, command: &str) -> Result<String, String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/db");
        let mut run = Command::new(script);
        let out = run.args([command, "--stores", &self.store()]).arg(self.home()).stdin(Stdio::null()).output();
        let out = out.map_err(|e| format!("{script} cannot be run: {e}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if out.status.success() { Ok(text(&out.stdout)) } else { Err(text(&out.stderr)) }
    }

    pub fn url(&self) -> String {
        let env = self.script("env").unwrap_or_else(|said| panic!("scripts/db env: {said}"));
        let dialect = if self.kind == Kind::Postgres { "POSTGRES" } else { "MYSQL" };
        let start = format!("export REDRIVE_TEST_{dialect}=");
        env.lines().find_map(|line| line.strip_prefix(&start)).expect("scripts/db env names its servers").to_owned()
    }

    /// SIGKILL; afterwards it is gone. Left behind, PostgreSQL's children first finish what they are at, and are heard.
    /// Killed with it they are not, as when the machine goes down, and commits are left whose answer is lost. Then none
    /// may be forgotten, not even one that was just born: it would wait for ever for a lock of the dead, and keep the
    /// server from coming back.
    pub fn kill(&self, with_children: bool) {
        let file = self.home().join(self.store()).join("pid");
        let main = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let doomed = || {
            let mut pids = self.processes();
            pids.retain(|pid| with_children || pid == main.trim());
            pids
        };
        let mut pids = doomed();
        assert!(!pids.is_empty(), "the server is there to be killed");
        while !pids.is_empty() {
            // Some may have ended by themselves, which is as good.
            Command::new("sh").args(["-c", r#"kill -9 "$@" 2>/dev/null"#, "sh"]).args(&pids).status().unwrap();
            pids = doomed();
        }
    }

    /// The processes that work in the server's directory: both servers go there, and a dead process is nowhere.
    fn processes(&self) -> Vec<String> {
        let home = self.home().canonicalize().unwrap();
        let ours = |process: &PathBuf| std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&home));
        let all = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        all.filter(ours).filter_map(|process| Some(process.file_name()?.to_str()?.to_owned())).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(said) = self.script("stop") {
            eprintln!("scripts/db stop: {said}");
        }
    }
}
