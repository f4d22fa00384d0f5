//! Somebody's browser: Chromium, driven by its own driver.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::http::Method;
use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};

use crate::support::Server;

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

/// A driver and the port that it listens on. It takes the same port of IPv4 and of IPv6, and ends if somebody has the second.
fn start_driver() -> Option<(Child, String)> {
    let none = "there is no chromedriver: scripts/test installs it (scripts/db install --stores browser)";
    let mut driver = Command::new("chromedriver");
    driver.arg("--port=0").stdout(Stdio::piped()).process_group(0);
    let mut driver = driver.spawn().expect(none);
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map(Result::unwrap);
    let Some(started) = lines.find(|line| line.contains("started successfully on port")) else {
        driver.wait().unwrap();
        return None;
    };
    std::thread::spawn(move || lines.for_each(drop)); // or it would wait for somebody to read
    let port = started.trim_end_matches('.').rsplit(' ').next().unwrap().to_owned();
    Some((driver, port))
}

impl Browser {
    /// A new one, that asks for pages in this language.
    pub async fn open(server: &Server, language: &str) -> Self {
        let (driver, port) = (0..5).find_map(|_| start_driver()).expect("chromedriver does not start");
        let language = format!("--accept-lang={language}");
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1280,900",
            &language,
        ];
        let mut wanted = Capabilities::new();
        wanted.insert("goog:chromeOptions".into(), json!({ "args": arguments }));
        wanted.insert("goog:loggingPrefs".into(), json!({ "browser": "ALL" }));
        let mut builder = ClientBuilder::new(HttpConnector::new());
        let page = builder.capabilities(wanted).connect(&format!("http://127.0.0.1:{port}")).await.unwrap();
        Self { driver, page, server: server.url() }
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

    /// A page that is live may be drawn anew between finding something and clicking on it.
    pub async fn click(&self, what: &str) {
        for _ in 0..20 {
            let found = self.page.wait().at_most(PATIENCE).for_element(Locator::Css(what)).await.unwrap();
            match found.click().await {
                Err(e) if e.is_stale_element_reference() => {}
                clicked => return clicked.unwrap(),
            }
        }
        panic!("{what} does not hold still");
    }

    pub async fn js(&self, script: &str) -> Value {
        self.page.execute(script, Vec::new()).await.unwrap()
    }

    /// Waits until this holds on the page, which may be another one by then.
    pub async fn until(&self, condition: &str) {
        let look = format!(
            "const end = arguments[0], give_up = Date.now() + 10000; \
             (function look() {{ if ({condition}) end(true); else if (Date.now() > give_up) end(false); else setTimeout(look, 20); }})()"
        );
        for _ in 0..20 {
            // An error: it went to another page while it looked.
            if let Ok(Value::Bool(true)) = self.page.execute_async(&look, Vec::new()).await {
                return;
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
        // What sticks to the edge of a window would lie in the middle of the picture.
        self.js("document.querySelectorAll('.bar').forEach((bar) => { bar.style.position = 'static'; })").await;
        let taken = self.devtools("Page.captureScreenshot", json!({ "captureBeyondViewport": true })).await;
        let png = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, taken["data"].as_str().unwrap()).unwrap();
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(std::path::Path::new(&dir).join(format!("{name}.png")), png).unwrap();
    }

    /// Presses Tab.
    pub async fn tab(&self) {
        for kind in ["rawKeyDown", "keyUp"] {
            let key = json!({ "type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9 });
            self.devtools("Input.dispatchKeyEvent", key).await;
        }
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

/// How long a story may take, with all its pages, on a machine that is busy.
pub const PATIENCE: Duration = Duration::from_secs(300);
