//! The terminal while `ringfold top` has it: the alternate screen, single keys, and its return.
//!
//! The terminal is given back however the program ends: by `Drop`, in a panic before its message
//! is printed, and after signals, which only end the wait for the next key. Keys are read here and
//! not by crossterm, which reads a closed terminal again and again without an end.
//!
//! What it deliberately does not do: colours, which crossterm leaves out where NO_COLOR is set.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Read};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::Rect;
use ratatui::{Frame, TerminalOptions, Viewport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::{flag, low_level};

use super::keys::{self, Key};

/// The size of a terminal that does not know its own, and the largest that is drawn: what a size
/// claims takes memory.
const SIZE_UNKNOWN: (u16, u16) = (80, 24);
const SIZE_MAX: (u16, u16) = (1000, 500);

/// How long the rest of a key's bytes may take; Esc alone is a key, too.
const REST_OF_KEY: Duration = Duration::from_millis(50);

/// What a terminal has to get back; nothing while it is not changed.
static TAKEN: Mutex<Option<Taken>> = Mutex::new(None);

struct Taken {
    keyboard: Option<(File, Termios)>,
}

/// What ended a wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The time is over.
    Time,
    /// There may be another size, or another screen.
    Redraw,
    Keys(Vec<Key>),
    /// To leave, with this exit status.
    Leave(u8),
}

/// The terminal, until it is dropped.
pub struct Terminal {
    /// Never dropped: it would write to the terminal once more, and to standard error that it
    /// cannot, which panics where both are gone.
    screen: ManuallyDrop<ratatui::Terminal<CrosstermBackend<BufWriter<File>>>>,
    output: File,
    keyboard: Option<File>,
    signals: Signals,
    is_drawn: bool,
}

impl Terminal {
    /// Takes the terminal that standard output is.
    pub fn take() -> Result<Terminal> {
        let output = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
        let viewport = Viewport::Fixed(area(&output));
        let backend = CrosstermBackend::new(BufWriter::new(output.try_clone()?));
        let screen = ratatui::Terminal::with_options(backend, TerminalOptions { viewport })?;
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            usual(panic);
        }));
        let terminal = Terminal {
            screen: ManuallyDrop::new(screen),
            output,
            keyboard: keyboard(),
            signals: Signals::listen().context("cannot listen for signals")?,
            is_drawn: false,
        };
        terminal.enter()?;
        Ok(terminal)
    }

    /// Changes the terminal, after it is known how to change it back.
    fn enter(&self) -> Result<()> {
        let mut keyboard = None;
        if let Some(file) = &self.keyboard {
            let before = tcgetattr(file).context("cannot ask for the terminal's mode")?;
            keyboard = Some((file.try_clone()?, before));
        }
        let mut raw = keyboard.as_ref().map(|(_, before)| before.clone());
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(Taken { keyboard });
        if let (Some(file), Some(raw)) = (&self.keyboard, &mut raw) {
            raw.make_raw();
            tcsetattr(file, OptionalActions::Now, raw).context("cannot read single keys")?;
        }
        let mut output = BufWriter::new(&self.output);
        execute!(output, EnterAlternateScreen, Hide)?;
        Ok(())
    }

    /// Draws a frame, unless the terminal has not taken the last one yet.
    pub fn draw(&mut self, render: impl FnOnce(&mut Frame)) -> Result<()> {
        let mut ready = [PollFd::new(&self.output, PollFlags::OUT)];
        let is_ready = poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0);
        if !is_ready {
            return Ok(());
        }
        let area = area(&self.output);
        if !self.is_drawn || self.screen.get_frame().area() != area {
            self.screen.resize(area)?;
            self.is_drawn = true;
        }
        self.screen.draw(render)?;
        Ok(())
    }

    /// Waits for a key or a signal, at the longest until `deadline`.
    pub fn wait(&mut self, deadline: Instant) -> Result<Event> {
        loop {
            if let Some(number) = self.signals.last() {
                return Ok(Event::Leave(128 + number));
            }
            if self.signals.stop.swap(false, Ordering::Relaxed) {
                self.stop()?;
            }
            if self.signals.continued.swap(false, Ordering::Relaxed) {
                self.enter_again()?;
                return Ok(Event::Redraw);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let (has_keys, is_woken) = self.poll(left)?;
            if is_woken {
                self.signals.clear();
                if self.signals.is_unseen() {
                    continue;
                }
                return Ok(Event::Redraw);
            }
            if has_keys {
                return self.keys();
            }
            if left.is_zero() {
                return Ok(Event::Time);
            }
        }
    }

    /// Whether there are keys, and whether there was a signal, within a time.
    fn poll(&self, left: Duration) -> Result<(bool, bool)> {
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let mut files = vec![PollFd::new(&self.signals.woken, PollFlags::IN)];
        files.extend(
            self.keyboard
                .as_ref()
                .map(|file| PollFd::new(file, PollFlags::IN)),
        );
        match poll(&mut files, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for keys"),
        }
        let is_ready = |file: &PollFd| !file.revents().is_empty();
        Ok((files.get(1).is_some_and(is_ready), is_ready(&files[0])))
    }

    /// Reads keys that are there. A terminal that is gone is a hangup.
    fn keys(&mut self) -> Result<Event> {
        let mut bytes = Vec::new();
        loop {
            let mut piece = [0; 64];
            let Some(Ok(count @ 1..)) = self.keyboard.as_mut().map(|file| file.read(&mut piece))
            else {
                return Ok(Event::Leave(128 + SIGHUP as u8));
            };
            bytes.extend_from_slice(&piece[..count]);
            let is_whole = !keys::is_cut(&bytes) || bytes.len() > piece.len();
            if is_whole || !self.poll(REST_OF_KEY)?.0 {
                return Ok(Event::Keys(keys::decode(&bytes)));
            }
        }
    }

    /// Stops this process with the terminal as it was, as Ctrl-Z does; goes on with the screen.
    pub fn stop(&mut self) -> Result<()> {
        give_back();
        kill_process(getpid(), Signal::STOP)?;
        self.signals.continued.store(false, Ordering::Relaxed);
        self.enter_again()
    }

    fn enter_again(&mut self) -> Result<()> {
        give_back();
        self.enter()?;
        self.is_drawn = false;
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back as it was, if it was taken.
fn give_back() {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Taken { keyboard }) = taken.take() else {
        return;
    };
    // A terminal that is gone needs nothing.
    if let Ok(output) = std::io::stdout().as_fd().try_clone_to_owned() {
        let mut output = BufWriter::new(File::from(output));
        let _ = execute!(output, Show, LeaveAlternateScreen);
    }
    if let Some((file, before)) = keyboard {
        let _ = tcsetattr(file, OptionalActions::Now, &before);
    }
}

/// Where keys come from: standard input, or else the terminal that this process is of.
fn keyboard() -> Option<File> {
    let input = std::io::stdin();
    match input.is_terminal() {
        true => Some(File::from(input.as_fd().try_clone_to_owned().ok()?)),
        false => File::open("/dev/tty").ok(),
    }
}

fn area(output: &File) -> Rect {
    let size = tcgetwinsize(output).map_or((0, 0), |size| (size.ws_col, size.ws_row));
    let (columns, rows) = match size {
        (0, _) | (_, 0) => SIZE_UNKNOWN,
        size => size,
    };
    Rect::new(0, 0, columns.min(SIZE_MAX.0), rows.min(SIZE_MAX.1))
}

/// The signals that came.
struct Signals {
    /// Readable when one came.
    woken: UnixStream,
    ended_by: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    continued: Arc<AtomicBool>,
}

impl Signals {
    fn listen() -> std::io::Result<Signals> {
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let signals = Signals {
            woken,
            ended_by: Arc::default(),
            stop: Arc::default(),
            continued: Arc::default(),
        };
        for number in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            // The second one ends the process at once: the terminal may take no more output.
            let again = Arc::new(AtomicBool::new(false));
            flag::register_conditional_default(number, again.clone())?;
            flag::register(number, again)?;
            flag::register_usize(number, signals.ended_by.clone(), number as usize)?;
        }
        flag::register(SIGTSTP, signals.stop.clone())?;
        flag::register(SIGCONT, signals.continued.clone())?;
        for number in [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH] {
            low_level::pipe::register(number, wake.try_clone()?)?;
        }
        Ok(signals)
    }

    /// The signal that is to end this process.
    fn last(&self) -> Option<u8> {
        match self.ended_by.load(Ordering::Relaxed) {
            0 => None,
            number => Some(number as u8),
        }
    }

    fn clear(&mut self) {
        let mut bytes = [0; 64];
        while matches!(self.woken.read(&mut bytes), Ok(1..)) {}
    }

    fn is_unseen(&self) -> bool {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        self.last().is_some() || is_set(&self.stop) || is_set(&self.continued)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    /// Has the test below panic while it has the terminal.
    const PANICS: &str = "TEST_TERMINAL_PANICS";

    #[test]
    fn a_panic_gives_the_terminal_back_before_its_message() {
        if std::env::var_os(PANICS).is_some() {
            let mut terminal = Terminal::take().unwrap();
            terminal.draw(|_| panic!("the reason")).unwrap();
        }
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let mut options = File::options();
        let slave = options.read(true).write(true).open(name.to_str().unwrap());
        let slave = slave.unwrap();
        let before = tcgetattr(&slave).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["a_panic_gives_the_terminal_back", "--nocapture"])
            .env(PANICS, "1")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .status();
        assert!(!status.unwrap().success());
        let after = tcgetattr(&slave).unwrap();
        assert_eq!(
            format!("{:?}", before.local_modes),
            format!("{:?}", after.local_modes)
        );
        drop(slave);
        let mut sent = Vec::new();
        // Once everything is read, the terminal without the other end is an error.
        let _ = File::from(master).read_to_end(&mut sent);
        let sent = String::from_utf8_lossy(&sent);
        let place = |text| {
            sent.rfind(text)
                .unwrap_or_else(|| panic!("no {text:?}: {sent}"))
        };
        assert!(place("\x1b[?1049h") < place("\x1b[?1049l"));
        assert!(place("\x1b[?1049l") < sent.find("the reason").unwrap());
    }
}
