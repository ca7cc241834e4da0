//! Child processes that die with the test, whichever way the test ends.

use std::{
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::LazyLock,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// The folder of this run of the tests; swept by the janitor.
pub fn folder() -> &'static Path {
    &JANITOR.folder
}

/// A new folder in the run's folder. Anybody may enter: the server's user isn't ours.
pub fn new_folder(name: &str) -> PathBuf {
    let path = folder().join(format!("{name}-{}", &super::uuid()[..8]));
    fs::create_dir_all(&path).expect("create a folder");
    path
}

/// A shell that outlives us for a moment: its standard input closes when this process ends, even
/// by SIGKILL; then it ends every process with a file in `pids` (the signal's name is inside) and
/// removes the folder.
struct Janitor {
    folder: PathBuf,
    _shell: Child,
}

static JANITOR: LazyLock<Janitor> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("walpost-it-{}", std::process::id()));
    fs::create_dir_all(folder.join("pids")).expect("create the folder of this run");
    let sweep = r#"trap '' INT TERM HUP; cat
        for file in "$1"/pids/*; do [ -e "$file" ] && kill -"$(cat "$file")" "${file##*/}"; done
        sleep 1; rm -rf "$1""#;
    let shell = Command::new("sh")
        .args(["-c", sweep, "janitor"])
        .arg(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start the janitor");
    Janitor {
        folder,
        _shell: shell,
    }
});

/// A child with its output in files.
pub struct Process {
    child: Child,
    note: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts it with `stdout` and `stderr` appended to these files. `end` is the signal that ends it for good.
    pub fn start(
        command: &mut Command,
        stdout: &Path,
        stderr: &Path,
        end: &str,
    ) -> io::Result<Process> {
        let open = |path: &Path| File::options().create(true).append(true).open(path);
        let child = command
            .stdin(Stdio::null())
            .stdout(open(stdout)?)
            .stderr(open(stderr)?)
            .process_group(0)
            .spawn()?;
        let note = folder().join("pids").join(child.id().to_string());
        fs::write(&note, end)?;
        Ok(Process {
            child,
            note,
            ended: None,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, or `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("wait for a child");
            if self.ended.is_some() {
                let _ = fs::remove_file(&self.note);
            }
        }
        self.ended
    }

    pub fn signal(&mut self, signal: Signal) {
        // A child that has been waited for may have left its number to somebody else.
        if self.ended().is_none() {
            let pid = Pid::from_raw(self.pid().cast_signed()).expect("a process id");
            kill_process(pid, signal).expect("send a signal");
        }
    }

    /// Its own children, dead ones that it has not waited for included.
    pub fn children(&self) -> Vec<Pid> {
        let parent = |pid: &str| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name before the last parenthesis may hold anything; then state and parent.
            stat.rsplit_once(')')?.1.split(' ').nth(2)?.parse().ok()
        };
        let entries = fs::read_dir("/proc").expect("read /proc");
        entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| parent(name) == Some(self.pid()))
            .filter_map(|name| Pid::from_raw(name.parse().ok()?))
            .collect()
    }

    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        while self.ended().is_none() && Instant::now() < deadline {
            sleep(Duration::from_millis(5));
        }
        self.ended
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        self.ended();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The user that runs PostgreSQL when we are root, which it refuses: `postgres`, as (uid, gid).
pub fn server_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("read /etc/passwd");
    let line = users
        .lines()
        .find(|line| line.starts_with("postgres:"))
        .expect("user postgres, for PostgreSQL refuses to run as root");
    let field = |n: usize| {
        line.split(':')
            .nth(n)
            .and_then(|text| text.parse().ok())
            .expect("a number in /etc/passwd")
    };
    Some((field(2), field(3)))
}

/// A command run as that user.
pub fn as_server_user(program: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some((uid, gid)) = server_user() {
        command.uid(uid).gid(gid);
    }
    command
}
