//! One frame: what the job is, its ranks, the selected rank's call in full, the keys.
//!
//! Columns that do not fit are left out, the least telling first; on a low screen the selected
//! rank's call has a single line, or none. What a colour says is also said by a word.

use clap::ValueEnum;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};

use super::View;
use crate::numbers::number;
use crate::watch::jobs::Job;
use crate::watch::rates::Rates;
use crate::watch::table::{self, NO_JOB, State};

/// A column of the screen.
struct Column {
    what: What,
    width: u16,
    /// The narrowest screen that shows it.
    screen: u16,
}

enum What {
    /// The same as in the plain table, by its head.
    Plain(&'static str),
    State,
}

const COLUMNS: [Column; 10] = [
    column(What::Plain("rank"), 5, 0),
    column(What::Plain("pid"), 7, 64),
    column(What::Plain("host"), 14, 110),
    column(What::Plain("calls/s"), 8, 24),
    column(What::Plain("GB/s"), 6, 36),
    column(What::Plain("wait%"), 5, 44),
    column(What::Plain("late%"), 5, 30),
    column(What::Plain("late by"), 8, 54),
    column(What::State, 7, 0),
    column(What::Plain("call"), 0, 72),
];

const fn column(what: What, width: u16, screen: u16) -> Column {
    Column {
        what,
        width,
        screen,
    }
}

/// Draws what `view` holds.
pub fn draw(frame: &mut Frame, view: &mut View) {
    let area = frame.area();
    let troubles = Vec::from_iter(trouble(view));
    let detail = match area.height {
        0..8 => 0,
        8..16 => 1,
        16.. => 3,
    };
    let heights = [
        Constraint::Length(2),
        Constraint::Min(1),
        Constraint::Length(detail),
        Constraint::Length(troubles.len() as u16),
        Constraint::Length(1),
    ];
    let [top, middle, below, trouble, bottom] = Layout::vertical(heights).areas(area);
    let now = view.now.clone();
    match now.jobs.get(view.place()) {
        Some(job) => {
            let rows = table::rows(&view.before, &now, job, view.order);
            view.page = middle.height.saturating_sub(1).max(1);
            frame.render_widget(header(view, job, &rows), top);
            frame.render_stateful_widget(ranks(&rows, area.width), middle, &mut view.rows);
            frame.render_widget(selected(view, &rows), below);
        }
        None => frame.render_widget(Paragraph::new(NO_JOB).wrap(Wrap { trim: true }), middle),
    }
    frame.render_widget(Paragraph::new(troubles), trouble);
    frame.render_widget(keys(view), bottom);
}

/// The job, and what its ranks do together.
fn header(view: &View, job: &Job, rows: &[table::Row]) -> Paragraph<'static> {
    let rates: Vec<&Rates> = rows.iter().filter_map(|row| row.rates.as_ref()).collect();
    let mean = |of: fn(&Rates) -> f64| match rates.len() {
        0 => "-".to_owned(),
        count => number(
            rates.iter().map(|rates| of(rates)).sum::<f64>() / count as f64,
            7,
        ),
    };
    let mut line = vec![Span::raw(format!(
        "{} calls/s  {} GB/s per rank",
        mean(|rates| rates.calls_per_s),
        mean(|rates| rates.bytes_per_s / 1e9)
    ))];
    if view.is_paused {
        let paused = Style::new().add_modifier(Modifier::REVERSED);
        line.insert(0, Span::styled("paused", paused));
        line.insert(1, Span::raw("  "));
    }
    if view.now.jobs.len() > 1 {
        let place = format!("  job {} of {}", view.place() + 1, view.now.jobs.len());
        line.push(Span::raw(place));
    }
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Paragraph::new(vec![
        Line::styled(table::heading(job), bold),
        Line::from(line),
    ])
}

/// The table of the ranks, as wide as the screen.
fn ranks(rows: &[table::Row], screen: u16) -> Table<'static> {
    let columns: Vec<&Column> = COLUMNS
        .iter()
        .filter(|column| screen >= column.screen)
        .collect();
    let widths = columns.iter().map(|column| match column.width {
        0 => Constraint::Min(0),
        width => Constraint::Length(width),
    });
    let heads = columns.iter().map(|column| column.cell(column.head()));
    let lines = rows.iter().map(|row| {
        let cells = columns.iter().map(|column| column.cell(column.text(row)));
        Row::new(cells).style(style(row.state))
    });
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    Table::new(lines, widths)
        .header(Row::new(heads).style(Style::new().add_modifier(Modifier::UNDERLINED)))
        .row_highlight_style(reversed)
}

impl Column {
    fn head(&self) -> String {
        match self.what {
            What::Plain(head) => head.into(),
            What::State => "state".into(),
        }
    }

    fn text(&self, row: &table::Row) -> String {
        match self.what {
            What::Plain(head) => row.cell(head).to_owned(),
            What::State => row.state.name().into(),
        }
    }

    fn cell(&self, text: String) -> Cell<'static> {
        let line = Line::raw(text);
        match self.what {
            What::State | What::Plain("host" | "call") => Cell::new(line),
            What::Plain(_) => Cell::new(line.right_aligned()),
        }
    }
}

fn style(state: State) -> Style {
    let style = Style::new();
    match state {
        State::Failed => style.fg(Color::Red),
        State::Waiting => style.fg(Color::Cyan),
        State::Late => style.fg(Color::Yellow),
        State::Idle => style.add_modifier(Modifier::DIM),
        State::Running => style,
    }
}

/// The selected rank's call, which its row may have no room for.
fn selected(view: &View, rows: &[table::Row]) -> Paragraph<'static> {
    let row = view.rows.selected().and_then(|index| rows.get(index));
    let text = row.map(|row| format!("rank {}: {}", row.cell("rank"), row.cell("call")));
    Paragraph::new(text.unwrap_or_default()).wrap(Wrap { trim: true })
}

/// What cannot be shown, and why.
fn trouble(view: &View) -> Option<Line<'static>> {
    let (pid, why) = view.now.unreadable.first()?;
    let more = match view.now.unreadable.len() - 1 {
        0 => String::new(),
        more => format!(" ({more} more)"),
    };
    let text = format!("the board of process {pid} cannot be read{more}: {why}");
    Some(Line::styled(text, Style::new().fg(Color::Red)))
}

fn keys(view: &View) -> Line<'static> {
    let order = view.order.to_possible_value();
    let order = order.map_or(String::new(), |value| value.get_name().to_owned());
    let pause = if view.is_paused { "continue" } else { "pause" };
    Line::raw(format!(
        "q quit  p {pause}  s sort: {order}  up/down rank  Tab job"
    ))
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;
    use ratatui::widgets::TableState;

    use super::*;
    use crate::watch::jobs::Sample;
    use crate::watch::table::Order;

    #[test]
    fn any_size_can_be_drawn() {
        let sample = std::rc::Rc::new(Sample {
            at_ns: 1,
            jobs: Vec::new(),
            unreadable: vec![(1, "it is too short".into()), (2, String::new())],
        });
        for (width, height) in [(1, 1), (2, 3), (40, 10), (80, 24), (200, 60), (1000, 2)] {
            let mut view = View {
                before: sample.clone(),
                now: sample.clone(),
                order: Order::Rank,
                is_paused: true,
                job: None,
                rows: TableState::new(),
                page: 1,
            };
            let mut terminal = ratatui::Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &mut view)).unwrap();
        }
    }

    #[test]
    fn columns_fit_the_screens_that_show_them() {
        for screen in 13..300 {
            let shown = COLUMNS.iter().filter(|column| screen >= column.screen);
            let widths: Vec<u16> = shown.map(|column| column.width).collect();
            let taken = widths.iter().sum::<u16>() + widths.len() as u16 - 1;
            assert!(taken <= screen, "{taken} columns of {screen}");
        }
    }
}
