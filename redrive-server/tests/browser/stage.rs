//! A server, somebody's browser, and a service that is called: all real, all of this test's own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Method;
use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use redrive::Store;
use serde_json::{Value, json};

/// A server of one's own; stopped with this.
pub struct Server {
    child: Child,
    pub url: String,
    pub token: String,
    dir: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let settings = "[http]\nallow = ['127.0.0.0/8']\n[defaults]\nbackoff = { fixed = '300ms' }\njitter = 'none'";
        std::fs::write(dir.path().join("redrive.toml"), settings).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).current_dir(dir.path()).env_remove("REDRIVE_DATABASE");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("API:")).unwrap();
        let url = line.split_whitespace().nth(1).unwrap().trim_end_matches("/api/v1").to_owned();
        let line = lines.find(|line| line.contains("token:")).unwrap();
        let token = line.split_whitespace().nth(1).unwrap().to_owned();
        Self { child, url, token, dir }
    }

    pub async fn store(&self) -> Store {
        Store::open(&format!("sqlite://{}", self.dir.path().join("redrive.db").display())).await.unwrap()
    }

    /// Enqueues by the API; the new task's id.
    pub fn enqueue(&self, task: &Value) -> String {
        let body = task.to_string();
        let host = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).unwrap();
        let head = format!(
            "POST /api/v1/tasks HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nauthorization: Bearer {}",
            self.token
        );
        write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let answer = answer.split_once("\r\n\r\n").unwrap().1;
        let answer: Value = serde_json::from_str(answer).unwrap();
        answer["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A service that is down until it is mended.
pub struct Target {
    pub url: String,
    works: Arc<AtomicBool>,
}

impl Target {
    pub fn down() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let works = Arc::new(AtomicBool::new(false));
        let is_up = works.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut part) = (stream.unwrap(), [0; 4096]);
                _ = stream.read(&mut part).unwrap();
                let status = if is_up.load(Ordering::Acquire) { "200 OK" } else { "503 Service Unavailable" };
                _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            }
        });
        Self { url, works }
    }

    pub fn mend(&self) {
        self.works.store(true, Ordering::Release);
    }
}

/// A browser; closed with this.
pub struct Browser {
    driver: Child,
    pub page: Client,
    server: String,
}

/// A command of Chromium's own.
#[derive(Debug)]
struct Chromium(&'static str, Value);

impl WebDriverCompatibleCommand for Chromium {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.0))
    }

    fn method_and_body(&self, _: &url::Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.1.to_string()))
    }
}

impl Browser {
    /// A new one, that asks for pages in this language.
    pub async fn open(server: &Server, language: &str) -> Self {
        let none = "there is no chromedriver: scripts/test installs it (scripts/db install --stores browser)";
        let mut driver = Command::new("chromedriver");
        driver.arg("--port=0").stdout(Stdio::piped()).process_group(0);
        let mut driver = driver.spawn().expect(none);
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map(Result::unwrap);
        let started = lines.find(|line| line.contains("started successfully on port")).unwrap();
        let port = started.trim_end_matches('.').rsplit(' ').next().unwrap().to_owned();
        std::thread::spawn(move || lines.for_each(drop)); // or it would wait for somebody to read
        let language = format!("--accept-lang={language}");
        let arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900", &language];
        let mut wanted = Capabilities::new();
        wanted.insert("goog:chromeOptions".into(), json!({ "args": arguments }));
        wanted.insert("goog:loggingPrefs".into(), json!({ "browser": "ALL" }));
        let mut builder = ClientBuilder::new(HttpConnector::new());
        let page = builder.capabilities(wanted).connect(&format!("http://127.0.0.1:{port}")).await.unwrap();
        Self { driver, page, server: server.url.clone() }
    }

    pub async fn log_in(&self, token: &str) {
        self.go("/login").await;
        self.page.find(Locator::Css("[name=token]")).await.unwrap().send_keys(token).await.unwrap();
        self.click("main button").await;
        self.until("document.querySelector('nav')").await;
    }

    pub async fn go(&self, path: &str) {
        self.page.goto(&format!("{}{path}", self.server)).await.unwrap();
    }

    pub async fn click(&self, what: &str) {
        self.page.wait().for_element(Locator::Css(what)).await.unwrap().click().await.unwrap();
    }

    pub async fn js(&self, script: &str) -> Value {
        self.page.execute(script, Vec::new()).await.unwrap()
    }

    /// Waits until this holds on the page, which may be another one by then.
    pub async fn until(&self, condition: &str) {
        let look = format!(
            "const end = arguments[0], give_up = Date.now() + 20000; \
             (function look() {{ if ({condition}) end(true); else if (Date.now() > give_up) end(false); else setTimeout(look, 20); }})()"
        );
        for _ in 0..20 {
            match self.page.execute_async(&look, Vec::new()).await {
                Ok(Value::Bool(true)) => return,
                Ok(_) => break,
                Err(_) => {} // it went to another page while it looked
            }
        }
        panic!("not so: {condition}\n{}", self.js("return document.body.innerText").await);
    }

    async fn chromium(&self, command: &'static str, body: Value) -> Value {
        self.page.issue_cmd(Chromium(command, body)).await.unwrap()
    }

    async fn devtools(&self, command: &str, params: Value) -> Value {
        self.chromium("goog/cdp/execute", json!({ "cmd": command, "params": params })).await
    }

    /// The size of its window, and whether it is dark.
    pub async fn look(&self, width: u32, theme: &str) {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
        let dark = json!({ "features": [{ "name": "prefers-color-scheme", "value": theme }] });
        self.devtools("Emulation.setEmulatedMedia", dark).await;
    }

    /// A picture of the whole page, if somebody wants pictures (REDRIVE_TEST_SCREENSHOTS, a directory).
    pub async fn picture(&self, name: &str) {
        let Ok(dir) = std::env::var("REDRIVE_TEST_SCREENSHOTS") else { return };
        let taken = self.devtools("Page.captureScreenshot", json!({ "captureBeyondViewport": true })).await;
        let png = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, taken["data"].as_str().unwrap()).unwrap();
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(std::path::Path::new(&dir).join(format!("{name}.png")), png).unwrap();
    }

    /// What the browser complained of: errors of scripts, and what the policy forbids.
    pub async fn complaints(&self) -> Vec<String> {
        let said = self.chromium("se/log", json!({ "type": "browser" })).await;
        let all = said.as_array().cloned().unwrap_or_default();
        let bad = all.iter().filter(|entry| entry["level"] == "SEVERE" || entry["level"] == "WARNING");
        bad.map(|entry| entry["message"].to_string()).collect()
    }

    pub async fn close(self) {
        self.page.clone().close_window().await.unwrap();
        drop(self);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver and its browser, which are a group of their own.
        _ = Command::new("kill").args(["--", &format!("-{}", self.driver.id())]).status();
        _ = self.driver.wait();
    }
}

/// How long somebody would wait for a page.
pub const PATIENCE: Duration = Duration::from_secs(60);
