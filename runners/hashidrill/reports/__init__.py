"""How a run looks while it goes on, and judged: terminal, HTML, Markdown. `core/judging/` says what it means."""
