"""What a judged run looks like afterwards: HTML, Markdown, timeline, figures. What it means is in `core/judging/`."""
