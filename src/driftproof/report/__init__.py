"""Report results: one HTML page (`page.write_report`), figures, and tables for pages and the terminal."""
