//! What tests of the server share: a server of one's own, asked over plain HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use redrive::Store;
use redrive::store::Role;
use serde_json::Value;

pub mod visitor;

/// Longer than anything here takes, shorter than forever.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// `redrive serve` on a database in a directory of its own; stopped with this.
pub struct Server {
    child: Child,
    /// Lines that it says.
    said: Mutex<Receiver<String>>,
    pub address: String,
    pub token: String,
    dir: tempfile::TempDir,
}

impl Server {
    /// With these settings in its file.
    pub fn start(settings: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), settings)
    }

    /// In a directory that has something already.
    pub fn start_in(dir: tempfile::TempDir, settings: &str) -> Self {
        Self::start_with(dir, settings, &[])
    }

    /// On a database of somewhere else, which is empty.
    pub fn start_on(database: &str) -> Self {
        Self::start_with(tempfile::tempdir().unwrap(), "", &["--database", database])
    }

    fn start_with(dir: tempfile::TempDir, settings: &str, args: &[&str]) -> Self {
        std::fs::write(dir.path().join("redrive.toml"), settings).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(args);
        command.current_dir(dir.path()).env_remove("REDRIVE_DATABASE");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (tell, said) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        std::thread::spawn(move || lines.for_each(|line| _ = tell.send(line)));
        let line = said.iter().find(|line| line.contains("API:")).unwrap();
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
        let line = said.iter().find(|line| line.contains("token:")).unwrap();
        let token = line.split_whitespace().nth(1).unwrap().to_owned();
        Self { child, said: Mutex::new(said), address, token, dir }
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(&self) {
        self.begin_to_stop();
        self.has_said("stopped");
    }

    /// Asks it to stop, and waits until it has heard that.
    pub fn begin_to_stop(&self) {
        assert!(Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap().success());
        self.has_said("SIGTERM: stopping");
    }

    /// Waits until it has said this.
    pub fn has_said(&self, line: &str) {
        let said = self.said.lock().unwrap();
        while said.recv_timeout(PATIENCE).expect("it does not say so") != line {}
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn database(&self) -> String {
        format!("sqlite://{}", self.path("redrive.db").display())
    }

    pub async fn store(&self) -> Store {
        Store::open(&self.database()).await.unwrap()
    }

    /// A new token: its secret and its id.
    pub async fn new_token(&self, name: &str, role: Role) -> (String, String) {
        let store = self.store().await;
        let made = store.create_token(name, role, None, "test", store.now().await.unwrap()).await.unwrap();
        (made.secret.reveal().to_owned(), made.token.id)
    }

    /// Sends a request as it is.
    pub fn ask(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Asks the API, as an admin.
    pub fn api(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.api_as(&self.token, method, &format!("/api/v1{path}"), "", &body)
    }

    /// Asks with a token and more headers, each with the end of its line.
    pub fn api_as(&self, token: &str, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        self.ask(&format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nauthorization: Bearer {token}\r\n{headers}content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        ))
    }

    /// What a command says that goes to its database, and not through it.
    pub fn cli_on_database(&self, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command.args(args).args(["--database", &self.database()]);
        String::from_utf8(command.current_dir(self.dir.path()).output().unwrap().stdout).unwrap()
    }

    /// A command of a person with this server: its code and all that it says.
    pub fn cli(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command
            .args(args)
            .args(["--server", &self.url()])
            .env("REDRIVE_TOKEN", &self.token)
            .env("NO_PROXY", "127.0.0.1");
        let said = command.current_dir(self.dir.path()).output().unwrap();
        (said.status.code(), String::from_utf8([said.stdout, said.stderr].concat()).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// What came back.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Its name in small letters.
    pub fn header(&self, name: &str) -> &str {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or_default()
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    pub fn has(&self, text: &str) -> bool {
        self.body.contains(text)
    }
}
