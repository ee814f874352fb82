// Records whose content their number and version give: mono Records.exe RECORDS ROUNDS
using System;
using System.Collections.Generic;
using System.Text;
using System.Threading;

static class Records {
    static long Random(long x) { return x * 48271 % 2147483647; }

    static string Content(int i, int version) {
        long x = Random(i * 31L + version * 7919L + 1);
        var words = new StringBuilder();
        for (int n = 0; n < 6; n++) words.Append((x = Random(x)).ToString("x")).Append(' ');
        var text = new StringBuilder("record " + i + " version " + version + " ");
        for (int n = 0; n < 8; n++) text.Append(words);
        return text.ToString();
    }

    static int Main(string[] words) {
        int records = int.Parse(words[0]), rounds = int.Parse(words[1]);
        var versions = new int[records];
        var strings = new string[records];
        var table = new Dictionary<string, byte[]>();
        for (int i = 0; i < records; i++) {
            strings[i] = Content(i, 0);
            table["key " + i] = Encoding.UTF8.GetBytes(strings[i]);
        }
        long sum = 0;
        for (int round = 0; round < rounds; round++) {
            Thread.Sleep(500);
            for (int i = 0; i < records; i++) {
                string want = Content(i, versions[i]);
                if (strings[i] != want || Encoding.UTF8.GetString(table["key " + i]) != want) {
                    Console.WriteLine("BAD record " + i + " in round " + round);
                    return 1;
                }
                sum = (sum * 31 + want.Length + want[30]) % 2147483647;
                if (i % 3 != round % 3) continue;
                strings[i] = Content(i, ++versions[i]);
                table["key " + i] = Encoding.UTF8.GetBytes(strings[i]);
            }
            GC.Collect();
        }
        Console.WriteLine("OK " + sum);
        return 0;
    }
}
